// Messages of the program between processes.
#include <gmock/gmock.h>

#include <chrono>
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

/// In real time: who waits for nothing goes on at its deadline, and who waits for something when it
/// comes.
TEST(MessagesOfProcesses, AreAwaitedUntilTheirDeadlines) {
  using Clock = std::chrono::steady_clock;
  const auto session = start(1);
  const auto seconds_since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const int other = rank() ^ 1;
  auto begin = Clock::now();
  EXPECT_FALSE(try_recv_from<int>({other, Group::kWorld, 3}, 0.05));
  EXPECT_FALSE(send_and_wait(1, {other, Group::kWorld, 4}, 0.05)) << "nobody receives it";
  EXPECT_GE(seconds_since(begin), 0.1);
  barrier();
  begin = Clock::now();
  EXPECT_EQ(try_recv_from<int>({other, Group::kWorld, 4}, 60), 1);
  if (rank() % 2 == 0) {
    EXPECT_TRUE(send_and_wait(torch::full({300000}, 2), other, 60));
  } else {
    EXPECT_EQ(recv_from<at::Tensor>(other).sum().item<double>(), 600000);
  }
  EXPECT_LT(seconds_since(begin), 30);
  barrier();
}

TEST(SettingsOfProcesses, AreThoseOfTheSession) {
  const auto session = start(2);
  EXPECT_EQ(session.config().microbatches, 4);
  EXPECT_EQ(session.config().pipeline_parallel_degree, 2);
}

}  // namespace messages_mpi_test
}  // namespace smp
