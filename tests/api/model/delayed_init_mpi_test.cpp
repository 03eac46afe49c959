// What each rank of a 400 MB model takes at its peak: its own part, not the whole.
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/utils.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "d2d/lend/heap_allocator.h"
#include "smp/delayed_init.h"
#include "smp/distributed_model.h"
#include "smp/nn/linear.h"
#include "smp/nn/sequential.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/own_mpi.h"

namespace smp {
namespace delayed_init_mpi_test {

constexpr double kMegabyte = 1 << 20;

/// A line of /proc/self/status, in MiB.
double memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == name + ":" && status >> kilobytes) return kilobytes / 1024;
  }
  return 0;
}

nn::Sequential build(InitOrder order) {
  torch::manual_seed(3);
  const delay_param_initialization delay(order);
  nn::Sequential layers;
  for (int i = 0; i < 40; ++i) {
    layers->push_back(nn::Linear(1600, 1600));
    if (i == 20) layers->push_back(nn::Linear(torch::nn::LinearOptions(1600, 1600).bias(false)));
  }
  return layers;
}

Session start() {
  static int argc = 0;
  static char* argv[] = {nullptr};
  return init(argc, argv);
}

class Peak : public testing::TestWithParam<InitOrder> {};

TEST_P(Peak, IsTheOwnPartAndTheLargestParameter) {
  auto session = start();
  const double before = memory("VmRSS");
  DistributedModel model(build(GetParam()));
  EXPECT_LT(memory("VmRSS") - before, 40);

  malloc_trim(0);
  if (auto* const heap = d2d::HeapAllocator::install()) heap->trim();
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const double start = memory("VmRSS");
  model.place();
  const double peak = memory("VmHWM") - start;
  double own = 0, whole = 0, largest = 0;
  for (const auto& parameter : model.parameters()) {
    const double size = static_cast<double>(parameter.nbytes()) / kMegabyte;
    whole += size;
    largest = std::max(largest, size);
    if (model.owns(parameter)) own += size;
  }
  std::printf("rank %d of %d: peak %.0f MiB, owned %.0f MiB of %.0f\n", rank(), size(), peak, own,
              whole);
  EXPECT_GT(whole, 390);
  EXPECT_LT(own, 1.2 * whole / size());
  EXPECT_LT(peak, own + largest + 24);
  EXPECT_GT(peak, own * 0.9);
}

INSTANTIATE_TEST_SUITE_P(Orders, Peak, testing::Values(InitOrder::kAsWritten, InitOrder::kByPath));

}  // namespace delayed_init_mpi_test
}  // namespace smp
