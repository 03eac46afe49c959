// device/zoo_mpi_test.cpp: every zoo model on GPUs, each rank a process with its own (or a part of
// the only one), equals one process on a GPU. Skipped where LibTorch has no CUDA or the machine no
// GPU.
#include <gmock/gmock.h>

#include "support/own_mpi.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace zoo_mpi_test {

Session start(const std::string& schedule, const std::string& transport) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = zoo_config(schedule);
  config.device = "cuda";
  config.transport = transport;
  return init(argc, argv, config);
}

std::string why_not() {
  if (!at::hasCUDA()) return "this LibTorch was built without CUDA";
  if (!torch::cuda::is_available()) return "this machine has no GPU";
  return {};
}

class ZooOnGpus : public testing::TestWithParam<const char*> {};

/// Kernels of a GPU may sum in another order for another batch: a boundary does not change it, so
/// float64 is as near as on the CPU.
TEST_P(ZooOnGpus, EqualsOneProcess) {
  if (const auto why = why_not(); !why.empty()) GTEST_SKIP() << why;
  std::vector<std::pair<Case, Trace>> references;
  for (auto& c : all_cases()) {
    if (c.random) continue;
    references.emplace_back(
        c, train_in_one_process(c, torch::kDouble, kMicrobatches, 1, torch::kCUDA));
  }
  auto session = start("interleaved", GetParam());
  for (const auto& [c, reference] : references) {
    SCOPED_TRACE(c.name);
    const auto ours = train_distributed(c, random_placement(c, size(), 17));
    expect_equal(ours, reference, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, ZooOnGpus, testing::Values("auto", "mpi"));

}  // namespace zoo_mpi_test
}  // namespace smp::zoo
