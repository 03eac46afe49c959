// Messages of the program between processes.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "smp/program/messages.h"
#include "smp/smp.h"
#include "support/own_mpi.h"

namespace smp {
namespace messages_mpi_test {

Session start(int stages) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  Config config;
  config.pipeline_parallel_degree = stages;
  config.microbatches = 4;
  config.plan_cache = "off";
  config.skip_tracing = true;
  return init(argc, argv, config);
}

/// Everybody sends much to everybody before anybody receives.
TEST(MessagesOfProcesses, AllToAllInAnyOrder) {
  const auto session = start(1);
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    for (int to = 0; to < size(); ++to) {
      const auto elements = round % 3 == 0 ? 300000 : 3;
      if (to != rank()) send(torch::full({elements}, 100 * rank() + round, torch::kInt), to);
    }
  }
  for (int from = size() - 1; from >= 0; --from) {
    for (int round = 0; from != rank() && round < kRounds; ++round) {
      const auto got = recv_from<at::Tensor>(from);
      EXPECT_TRUE(torch::all(got == 100 * from + round).item<bool>());
    }
  }
  barrier();
}

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() : weight(register_parameter("weight", torch::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) { return x * weight; }
  at::Tensor weight;
};
SMP_MODULE(Scale);

/// Bodies of replicas tell each other of each microbatch, in every step, while gradients travel.
TEST(MessagesOfProcesses, GoBetweenBodiesOfReplicas) {
  const auto session = start(1);
  Scale net;
  DistributedModel model(net);
  auto train = step([&](const at::Tensor& x) {
    const auto y = model(x).sum();
    const Peer other(dp_rank() ^ 1, Group::kDp);
    send(std::vector<double>{y.item<double>()}, other);
    model.backward(y);
    return recv_from<std::vector<double>>(other).at(0) - y.item<double>();
  });
  for (int round = 0; round < 3; ++round) {
    const auto differences = train(torch::arange(4.) + 100 * dp_rank()).outputs();
    EXPECT_EQ(differences, std::vector<double>(4, dp_rank() % 2 == 0 ? 100 : -100));
  }
}

}  // namespace messages_mpi_test
}  // namespace smp
