// Sums for owners while the step still runs, where ranks share distributed modules: slices are
// summed among the ranks that hold the same one, other parameters among all of a stage.
#include <gmock/gmock.h>

#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace early_shards_test {

struct Mix {
  int ranks, tp, pp;
  bool prescaled = false;
  bool sparse = false;
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.ranks << " ranks, tp " << mix.tp << ", pp " << mix.pp
       << (mix.prescaled ? ", prescaled" : "") << (mix.sparse ? ", sparse" : "");
}

/// What all ranks have, in float32, in which any other order of a sum shows.
std::map<int, Training> train(const Mix& mix, bool shard, bool overlap, std::uint64_t seed) {
  Config config;
  config.tensor_parallel_degree = mix.tp;
  config.pipeline_parallel_degree = mix.pp;
  config.microbatches = kMicrobatches;
  config.prescaled_batch = mix.prescaled;
  config.shard_optimizer_state = shard;
  config.overlapping_allreduce = overlap;
  config.bucket_cap_mb = 1e-4;
  std::map<int, Training> all;
  run_local(mix.ranks, [&] { all[rank()] = train_sliced(mix.sparse, shard, at::kFloat); }, config,
            {seed});
  return all;
}

class EarlySlices : public testing::TestWithParam<Mix> {};
INSTANTIATE_TEST_SUITE_P(Mixes, EarlySlices,
                         testing::Values(Mix{4, 2, 1}, Mix{4, 2, 1, true}, Mix{8, 2, 2},
                                         Mix{8, 2, 2, true}, Mix{4, 4, 1},
                                         Mix{8, 2, 1, false, true}));

/// As many as there are, of which only one replica of each has the gradient.
void expect_same_bits(const Training& own, const Training& expected, bool all) {
  if (all) {
    EXPECT_EQ(own.tensors.size(), expected.tensors.size());
  }
  for (const auto& [name, tensor] : own.tensors) {
    EXPECT_TRUE(at::equal(tensor, expected.tensors.at(name))) << name;
  }
}

TEST_P(EarlySlices, HaveTheBitsOfLateOnesAndOfReplicasThatAllStep) {
  const auto plain = train(GetParam(), false, false, 1), late = train(GetParam(), true, false, 1);
  for (const std::uint64_t seed : {1, 2, 3}) {
    for (const auto& [rank, own] : train(GetParam(), true, true, seed)) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", rank " << rank);
      EXPECT_GT(own.early, 0u);
      EXPECT_EQ(late.at(rank).early, 0u);
      expect_same_bits(own, late.at(rank), true);
      expect_same_bits(own, plain.at(rank), false);
    }
  }
}

}  // namespace early_shards_test
}  // namespace smp::tp
