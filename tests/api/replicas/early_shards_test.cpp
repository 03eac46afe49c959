// Sums for the owners of parameters that are made while the step still runs: the same bits as at
// its end, and as on replicas that all have them (docs/data_parallelism.md, Sharded optimizer
// state).
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "api/rank/rank.h"
#include "api/replicas/early_gradients_local.h"
#include "api/replicas/replicas.h"

namespace smp::zoo {
namespace early_shards_test {

using namespace early_gradients_testing;

struct Mix {
  int stages, replicas;
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.stages << " stages, " << mix.replicas << " replicas";
}

Program sharded(const Mix& mix) {
  auto program = of_stages(mix.stages);
  program.replicas = mix.replicas;
  program.configure = [](Config& config) { config.shard_optimizer_state = true; };
  return program;
}

class EarlyShards : public testing::TestWithParam<Mix> {
 protected:
  Program program = sharded(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Mixes, EarlyShards, testing::Values(Mix{1, 2}, Mix{1, 3}, Mix{2, 2}));

TEST_P(EarlyShards, HaveTheBitsOfLateOnes) { EXPECT_GT(expect_bits_of_late(program), 0u); }

TEST_P(EarlyShards, HaveTheBitsOfReplicasThatAllStep) {
  auto plain = program;
  plain.configure = {};
  for (const bool overlap : {true, false}) {
    const auto expected = train(plain, overlap, 1);
    for (const std::uint64_t seed : {1, 2, 3}) {
      const auto own = train(program, true, seed);
      EXPECT_GT(own.early, 0u);
      expect_same(own.values, expected.values);
      int owned = 0;
      for (const auto& [name, gradient] : own.gradients) {
        if (!gradient.defined()) continue;
        EXPECT_TRUE(at::equal(gradient, expected.gradients.at(name))) << name;
        ++owned;
      }
      EXPECT_EQ(owned, 10 * kSteps) << "each parameter that is used, on one replica";
    }
  }
}

// All buckets of all steps but the first, in which nothing is known.
TEST_P(EarlyShards, AreAllWhereStepsAreAlike) {
  const auto all = train(program, true, 1, 1000);
  const int buckets = program.stages * program.replicas * (kSteps - 1);
  EXPECT_EQ(all.early, static_cast<std::uint64_t>(buckets));
}

TEST_P(EarlyShards, MayBeExpectedInVain) {
  program.with_rare = [](int step, int replica) { return step != 3 || replica == 0; };
  EXPECT_GT(expect_bits_of_late(program), 0u);
  program.with_rare = [](int step, int replica) { return (step + replica) % 2 == 0; };
  expect_bits_of_late(program);
  program.with_rare = [](int step, int) { return step % 2 == 0; };
  expect_bits_of_late(program);
}

// What the owner has is a mean, which counts for all replicas.
TEST_P(EarlyShards, AddToThoseOfStepsBefore) {
  program.zero_grad = [](int step) { return step % 3 == 0; };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyShards, FollowStepsUnderNoSync) {
  const auto is_apart = [](int step) { return step % 2 == 0 && step + 1 < kSteps; };
  program.zero_grad = is_apart;
  program.update = [is_apart](int step) { return !is_apart(step); };
  std::map<int, std::optional<NoSync>> apart;
  program.before_step = [&](Replica& replica, int step) {
    apart[rank()].reset();
    if (is_apart(step)) apart[rank()].emplace(replica.model.no_sync());
  };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyShards, OfAFailedStepAreForgotten) {
  const auto ranks = static_cast<std::size_t>(program.stages * program.replicas);
  std::vector<int> throws_left(ranks);
  fail_in_last_backward(program, throws_left, {2, 4});
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

TEST_P(EarlyShards, GoThroughHooksOfParametersFirst) {
  program.prepare = [](Replica& replica) {
    replica.model.place();
    for (const auto& [name, parameter] : replica.model.local_named_parameters()) {
      parameter.register_hook([](const Tensor& gradient) { return gradient * 1.7 + 0.1; });
    }
  };
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

// Past the version counter, and with another scale in each replica.
TEST(EarlyShardsOfBodies, MayBeChangedByThem) {
  auto program = sharded({1, 3});
  program.microbatches = 1;
  for (const int when : {3, -1}) {
    SCOPED_TRACE(when);
    scale_in_bodies(program, when);
    const auto early = expect_bits_of_late(program);
    EXPECT_EQ(early > 0, when >= 0);
  }
}

TEST(EarlyShardsOfStaticMode, HaveTheBitsOfLateOnes) {
  for (const bool fast : {false, true}) {
    auto program = sharded({2, 2});
    program.configure = [fast](Config& config) {
      config.shard_optimizer_state = true;
      config.static_mode = true;
      config.fast_mode = fast;
    };
    EXPECT_GT(expect_bits_of_late(program), 0u);
  }
}

/// Bytes of tensors that all ranks of one stage send in the last step, and then for its values.
struct Sent {
  std::uint64_t in_step = 0, after = 0;
};

Sent bytes_sent(const Program& program, bool overlap) {
  Sent sent;
  run_local(program.replicas,
            [&] {
              int step = 0;
              Replica replica(program, step);
              const auto so_far = [] {
                return Rank::current().channel().counters().tensor_bytes_sent;
              };
              for (; step < 3; ++step) {
                replica.optimizer.zero_grad();
                const auto before = so_far();
                replica.train();
                const auto between = so_far();
                replica.optimizer.step();
                if (step < 2) continue;
                sent.in_step += between - before;
                sent.after += so_far() - between;
              }
              const auto early = Replicas::current().gradients().averaged_early();
              EXPECT_EQ(early > 0, overlap);
            },
            config_of(program, overlap, 2e-3), {.seed = 1});
  return sent;
}

// Of gradients and values alike (n-1)/n on each, on average; of what nobody uses the values.
TEST(EarlyShardsOfAll, SendWhatTheFormulaSays) {
  const auto program = sharded({1, 3});
  const std::uint64_t used = 8 * (3 * 16 + 16 + 3 * (16 * 16 + 16) + 16 + 1);
  for (const bool overlap : {true, false}) {
    const auto sent = bytes_sent(program, overlap);
    EXPECT_EQ(sent.in_step, 2 * used) << overlap;
    EXPECT_EQ(sent.after, 2 * (used + 8 * (4 * 4 + 4))) << overlap;
  }
}

}  // namespace early_shards_test
}  // namespace smp::zoo
