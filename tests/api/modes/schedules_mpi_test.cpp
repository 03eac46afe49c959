// A backward in two parts over MPI, where modules take time: gradients of weights wait as long as
// others have work for the rank.
#include <gmock/gmock.h>
#include <torch/types.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "api/session/start.h"
#include "smp/distributed_model.h"
#include "smp/module.h"
#include "smp/placement.h"
#include "smp/session.h"
#include "smp/step.h"
#include "support/own_mpi.h"

namespace smp {
namespace schedules_mpi_test {

/// Far more than a message takes to go there and back, on a busy machine too.
constexpr std::chrono::milliseconds kWork(50);

std::vector<std::string> done;

/// A product with a weight, on the last rank; each of its three parts takes time.
struct SlowImpl : torch::nn::Module {
  SlowImpl() { weight = register_parameter("weight", torch::eye(3)); }
  at::Tensor forward(const at::Tensor& x) {
    const auto scaled = weight * 2;
    if (current_microbatch() >= 0) {
      work("F");
      watch(x, "I");
      watch(scaled, "W");
    }
    return x.mm(scaled);
  }
  static void work(const std::string& what) {
    std::this_thread::sleep_for(kWork);
    done.push_back(what + std::to_string(current_microbatch()));
  }
  static void watch(const at::Tensor& tensor, const std::string& what) {
    if (tensor.requires_grad()) tensor.register_hook([what](const at::Tensor&) { work(what); });
  }
  at::Tensor weight;
};
SMP_MODULE(Slow);

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return slow(x * scale); }
  Slow slow{register_module("slow", Slow())};
  at::Tensor scale{register_parameter("scale", torch::ones({1}))};
};
SMP_MODULE(Net);

std::string write_lists(int ranks) {
  const auto path = testing::TempDir() + "/schedules_mpi_test_" + std::to_string(ranks) + ".txt";
  std::ofstream file(path);
  file << "smp-schedule 1\nmicrobatches 3\n";
  for (int rank = 0; rank < ranks; ++rank) {
    const bool last = rank == ranks - 1;
    file << "rank " << rank << ": F0 F1 F2 " << (last ? "I0 I1 I2 W2 W0 W1\n" : "B0 B1 B2\n");
  }
  return path;
}

TEST(SchedulesOverMpi, WeightGradientsWaitAsLongAsOthersHaveWork) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  static int argc = 0;
  static char* argv[] = {nullptr};
  Config config;
  config.microbatches = 3;
  config.plan_cache = "off";
  config.pipeline = "file:" + write_lists(ranks);
  const auto session = start(argc, argv, config, {});
  DistributedModel<Net> model{Net()};
  model.set_partition("", 0);
  model.set_partition("slow", ranks - 1);
  auto train = step([&](at::Tensor x) { model.backward(model(x).square().mean()); });
  done.clear();
  train(torch::ones({6, 3}));
  if (rank() != ranks - 1) return;
  EXPECT_THAT(done, testing::ElementsAre("F0", "F1", "F2", "I0", "I1", "I2", "W2", "W0", "W1"));
}

}  // namespace schedules_mpi_test
}  // namespace smp
