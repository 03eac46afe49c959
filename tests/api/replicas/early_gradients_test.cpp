// Gradients that replicas add up while the step still runs: the same bits as at its end, whatever
// the step does, and those of one process (docs/data_parallelism.md).
#include "api/replicas/early_gradients_local.h"

#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/refusal.h"

namespace smp::zoo {
namespace early_gradients_test {

using namespace early_gradients_testing;
using testing::HasSubstr;

class EarlyGradients : public testing::TestWithParam<int> {
 protected:
  const int stages = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Stages, EarlyGradients, testing::Values(1, 2));

TEST_P(EarlyGradients, HaveTheBitsOfLateOnes) {
  const auto program = of_stages(stages);
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

// All buckets of all steps but the first, in which nothing is known.
TEST_P(EarlyGradients, AreAllWhereStepsAreAlike) {
  const auto program = of_stages(stages);
  const auto all = train(program, true, 1, 1000);
  EXPECT_EQ(all.early, static_cast<std::uint64_t>(stages * program.replicas * (kSteps - 1)));
}

/// Gradients of one process on the batches of all replicas, with plain LibTorch.
TEST_P(EarlyGradients, AreThoseOfOneProcessThoughReplicasTakeOtherWays) {
  auto program = of_stages(stages);
  program.with_rare = [](int step, int replica) { return step != 3 || replica == 0; };
  EXPECT_GT(expect_bits_of_late(program), 0u);
  const auto own = train(program, true, 5);
  auto net = make_branches();
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    Tensor loss = torch::zeros({}, torch::kDouble);
    for (int replica = 0; replica < program.replicas; ++replica) {
      const bool rare = program.with_rare(step, replica);
      loss = loss + net->forward(rows_of(step, replica), rare).pow(2).mean() / program.replicas;
    }
    loss.backward();
    for (const auto& item : net->named_parameters()) {
      for (int rank = 0; rank < stages * program.replicas; ++rank) {
        const auto found = own.gradients.find(std::to_string(rank) + " step " +
                                              std::to_string(step) + " " + item.key());
        if (found == own.gradients.end()) continue;
        ASSERT_EQ(found->second.defined(), item.value().grad().defined()) << found->first;
        if (!found->second.defined()) continue;
        EXPECT_TRUE(torch::allclose(found->second, item.value().grad(), 1e-12, 1e-14))
            << found->first;
      }
    }
    optimizer.step();
  }
}

TEST_P(EarlyGradients, MayBeExpectedInVainInEveryStep) {
  auto program = of_stages(stages);
  program.with_rare = [](int step, int replica) { return (step + replica) % 2 == 0; };
  expect_bits_of_late(program);
  program.with_rare = [](int step, int) { return step % 2 == 0; };
  expect_bits_of_late(program);
}

TEST_P(EarlyGradients, AddToThoseOfStepsBefore) {
  auto program = of_stages(stages);
  program.zero_grad = [](int step) { return step % 3 == 0; };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyGradients, StayApartUnderNoSync) {
  auto program = of_stages(stages);
  program.zero_grad = [](int step) { return step % 2 == 0; };
  std::map<int, std::optional<NoSync>> apart;
  program.before_step = [&](Replica& replica, int step) {
    apart[rank()].reset();
    if (step % 2 == 0) apart[rank()].emplace(replica.model.no_sync());
    if (step + 1 == kSteps) apart[rank()].reset();
  };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyGradients, GoThroughHooksFirst) {
  auto program = of_stages(stages);
  program.prepare = [](Replica& replica) {
    replica.model.place();
    for (const auto& [name, parameter] : replica.model.local_named_parameters()) {
      parameter.register_hook([](const Tensor& gradient) { return gradient * 1.7 + 0.1; });
    }
  };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

// As torch::nn::utils::clip_grad_norm_ does it, past the version counter.
TEST(EarlyGradientsOfBodies, MayBeChangedByThem) {
  auto program = of_stages(1);
  program.microbatches = 1;
  for (const int when : {3, -1}) {
    SCOPED_TRACE(when);
    scale_in_bodies(program, when);
    const auto early = expect_bits_of_late(program);
    EXPECT_EQ(early > 0, when >= 0);
  }
}

TEST(EarlyGradientsOfBodies, MayFollowASecondBackward) {
  auto program = of_stages(2);
  program.backward = [](Replica& replica, int step, const Tensor& loss) {
    replica.model.backward(loss, {}, /*retain_graph=*/true);
    if (step % 2 == 1) replica.model.backward(loss * 0.5);
  };
  expect_bits_of_late(program);
}

TEST_P(EarlyGradients, DoNotMeetThoseOfGrad) {
  auto program = of_stages(stages);
  program.backward = [](Replica& replica, int, const Tensor& loss) {
    const auto own = smp::grad({loss}, {replica.net->first->weight}, {}, /*retain_graph=*/true);
    EXPECT_TRUE(own[0].defined());
    replica.model.backward(loss);
  };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyGradients, OfAFailedStepAreForgotten) {
  auto program = of_stages(stages);
  std::vector<int> throws_left(static_cast<std::size_t>(stages * program.replicas));
  fail_in_last_backward(program, throws_left, {2, 4});
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST(EarlyGradientsOfStaticMode, HaveTheBitsOfLateOnes) {
  for (const bool fast : {false, true}) {
    auto program = of_stages(2);
    program.configure = [fast](Config& config) {
      config.static_mode = true;
      config.fast_mode = fast;
    };
    EXPECT_GT(expect_bits_of_late(program), 0u);
  }
}

// ---- hooks of communication --------------------------------------------------------------------

TEST_P(EarlyGradients, GoThroughTheHookOfTheModel) {
  auto program = of_stages(stages);
  program.prepare = [](Replica& replica) {
    replica.model.register_comm_hook(bf16_compress_hook());
  };
  const auto own = train(program, true, 1), late = train(program, false, 1);
  EXPECT_GT(own.early, 0u);
  expect_same(own.values, late.values);
  for (const auto& [name, gradient] : own.gradients) {
    if (!gradient.defined()) continue;
    EXPECT_TRUE(at::equal(gradient, gradient.to(at::kBFloat16).to(at::kDouble))) << name;
  }
  const auto exact = train(of_stages(stages), true, 1);
  for (const auto& [name, value] : exact.values) {
    EXPECT_TRUE(torch::allclose(own.values.at(name), value, 1e-2, 1e-3)) << name;
    EXPECT_EQ(name.find("unused") != std::string::npos, at::equal(own.values.at(name), value));
  }
  for (const auto& [name, value] : own.values) {  // as in the other replica
    if (name[0] != '0') continue;
    auto other = std::to_string(stages) + name.substr(1);
    EXPECT_TRUE(at::equal(own.values.at(other), value)) << name;
  }
}

TEST(CommHooks, MustBeThereInAllReplicasOrNone) {
  auto program = of_stages(2);
  program.prepare = [](Replica& replica) {
    if (dp_rank() == 1) replica.model.register_comm_hook(bf16_compress_hook());
  };
  EXPECT_THAT(refusal<std::exception>([&] { train(program, true, 1); }),
              testing::AllOf(HasSubstr("what becomes of gradients"),
                             HasSubstr("with communication hooks of models 0")));
}

TEST(CommHooks, AreRefusedInStepsAndWithShards) {
  Config config;
  config.shard_optimizer_state = true;
  config.pipeline_parallel_degree = 1;
  run_local(
      2,
      [] {
        int step = 0;
        const Program program;
        Replica replica(program, step);
        replica.model.register_comm_hook(nullptr);
        EXPECT_THAT(refusal<UnsupportedError>(
                        [&] { replica.model.register_comm_hook(bf16_compress_hook()); }),
                    HasSubstr("do not go together with shard_optimizer_state"));
        auto body = smp::step([&](Tensor x) {
          EXPECT_THAT(refusal([&] { replica.model.register_comm_hook(nullptr); }),
                      HasSubstr("in the body of a step"));
          auto loss = replica.model(x, true).mean();
          replica.model.backward(loss);
          return loss;
        });
        body(rows_of(0, dp_rank()));
      },
      config);
}

}  // namespace early_gradients_test
}  // namespace smp::zoo
