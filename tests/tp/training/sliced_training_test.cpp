// Models with distributed modules equal one process of plain LibTorch on the global batch: every
// mix of tensor, pipeline and data parallelism, in random order of everything that is ready.
#include <gmock/gmock.h>

#include "support/refusal.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace sliced_training_test {

using testing::AllOf;
using testing::HasSubstr;

struct Mix {
  int ranks, tp, pp;
  const char* placement = "cluster";
  const char* pipeline = "interleaved";
  bool sparse = false;
  bool shard = false;  ///< of optimizer state
  bool prescaled = false;

  int batches() const { return ranks / pp / (prescaled ? tp : 1); }
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << mix.ranks << " ranks, tp " << mix.tp << ", pp " << mix.pp << ", " << mix.placement << ", "
       << mix.pipeline << (mix.shard ? ", sharded state" : "")
       << (mix.prescaled ? ", prescaled batch" : "");
}

Config config_of(const Mix& mix) {
  Config config;
  config.tensor_parallel_degree = mix.tp;
  config.pipeline_parallel_degree = mix.pp;
  config.placement_strategy = mix.placement;
  config.pipeline = mix.pipeline;
  config.microbatches = kMicrobatches;
  config.shard_optimizer_state = mix.shard;
  config.prescaled_batch = mix.prescaled;
  return config;
}

class SlicedTraining : public testing::TestWithParam<Mix> {};

TEST_P(SlicedTraining, EqualsOneProcessOnTheGlobalBatch) {
  const auto mix = GetParam();
  const auto reference = train_in_one_process(mix.batches(), mix.sparse);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    std::map<int, std::set<std::string>> names;  // by tp_rank; of all together if state is sharded
    run_local(mix.ranks,
              [&] {
                ASSERT_EQ(tp_size(), mix.tp);
                ASSERT_EQ(data_shard().count, mix.batches());
                const auto ours = train_sliced(mix.sparse, mix.shard);
                names[mix.shard ? 0 : tp_rank()].merge(
                    expect_equal(ours, reference, tp_rank(), tp_size()));
              },
              config_of(mix), {seed});
    ASSERT_EQ(names.size(), static_cast<std::size_t>(mix.shard ? 1 : mix.tp));
    for (const auto& [tp, seen] : names) EXPECT_EQ(seen.size(), reference.tensors.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, SlicedTraining,
                         testing::Values(Mix{1, 1, 1}, Mix{2, 1, 1}, Mix{4, 1, 2}, Mix{2, 2, 1},
                                         Mix{4, 4, 1}, Mix{4, 2, 1}, Mix{4, 2, 2},
                                         Mix{4, 2, 2, "spread", "simple"},
                                         Mix{4, 2, 2, "cluster", "1f1b"}, Mix{4, 2, 1, "TDP"},
                                         Mix{2, 2, 1, "cluster", "interleaved", true}, Mix{8, 2, 2},
                                         Mix{8, 2, 2, "PTD"}, Mix{8, 4, 2}));

/// Two of each degree, in every order of the axes.
INSTANTIATE_TEST_SUITE_P(Placements, SlicedTraining,
                         testing::Values(Mix{8, 2, 2, "DPT"}, Mix{8, 2, 2, "DTP"},
                                         Mix{8, 2, 2, "PDT"}, Mix{8, 2, 2, "PTD"},
                                         Mix{8, 2, 2, "TDP"}, Mix{8, 2, 2, "TPD"}));

/// Sums are associated otherwise than in one process: four steps with momentum stay within 1e-5 of
/// the largest value of each tensor.
TEST(SlicedTrainingInFloat32, IsThatOfOneProcessToRounding) {
  for (const auto& mix :
       {Mix{2, 1, 1}, Mix{4, 1, 2}, Mix{2, 2, 1}, Mix{4, 2, 1}, Mix{4, 2, 2}, Mix{8, 2, 2},
        Mix{4, 2, 1, "cluster", "interleaved", false, false, true}}) {
    SCOPED_TRACE(testing::PrintToString(mix));
    const auto reference = train_in_one_process(mix.batches(), false, at::kFloat);
    run_local(mix.ranks,
              [&] {
                expect_equal(train_sliced(false, false, at::kFloat), reference, tp_rank(),
                             tp_size(), 1e-5);
              },
              config_of(mix), {1});
  }
}

constexpr auto kSpread = "spread";
constexpr auto kUsual = "interleaved";
INSTANTIATE_TEST_SUITE_P(ShardedState, SlicedTraining,
                         testing::Values(Mix{2, 2, 1, kSpread, kUsual, false, true},
                                         Mix{4, 2, 1, kSpread, kUsual, false, true},
                                         Mix{8, 2, 2, kSpread, kUsual, false, true},
                                         Mix{8, 2, 1, "TDP", kUsual, true, true},
                                         Mix{8, 2, 2, "PTD", kUsual, false, true}));

/// The ranks of a group have one batch.
INSTANTIATE_TEST_SUITE_P(PrescaledBatch, SlicedTraining,
                         testing::Values(Mix{1, 1, 1, kSpread, kUsual, false, false, true},
                                         Mix{2, 1, 1, kSpread, kUsual, false, false, true},
                                         Mix{2, 2, 1, kSpread, kUsual, false, false, true},
                                         Mix{4, 4, 1, kSpread, kUsual, false, false, true},
                                         Mix{4, 2, 1, kSpread, kUsual, false, false, true},
                                         Mix{4, 2, 1, "TDP", kUsual, true, false, true},
                                         Mix{4, 2, 2, "cluster", "1f1b", false, false, true},
                                         Mix{4, 2, 2, kSpread, "simple", false, false, true},
                                         Mix{8, 2, 2, "PTD", kUsual, false, false, true},
                                         Mix{8, 4, 2, "cluster", kUsual, true, false, true},
                                         Mix{4, 2, 1, kSpread, kUsual, false, true, true},
                                         Mix{8, 2, 2, "PTD", kUsual, false, true, true},
                                         Mix{8, 2, 1, "TDP", kUsual, true, true, true}));

}  // namespace sliced_training_test
}  // namespace smp::tp
