// api/replicas/replicas_mpi_test.cpp: replicas of one model, each on samples of its own, equal one
// process on the global batch: pipelines of 1 and 2 stages, as many replicas as fit.
#include <gmock/gmock.h>
#include <xxhash.h>

#include "api/replicas/replicas_testing.h"
#include "base/check.h"
#include "support/own_mpi.h"
#include "support/refusal.h"

namespace smp::zoo {
namespace replicas_mpi_test {

int ranks_started() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

Session start(int stages, const std::string& placement = "cluster", double bucket_mb = 25,
              bool shard_optimizer_state = false) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = zoo_config("interleaved");
  config.shard_optimizer_state = shard_optimizer_state;
  config.pipeline_parallel_degree = stages;
  config.placement_strategy = placement;
  config.bucket_cap_mb = bucket_mb;
  return init(argc, argv, config);
}

void expect_as_in_one_process(int stages, const std::string& placement) {
  const int replicas = ranks_started() / stages;
  std::vector<std::pair<Case, Trace>> references;
  for (auto& c : all_cases()) {
    if (!c.random) references.emplace_back(c, reference_of(c, replicas));
  }
  const auto session = start(stages, placement);
  ASSERT_EQ(dp_size(), replicas);
  for (auto& [c, reference] : references) {
    SCOPED_TRACE(c.name);
    auto ours = train_replica(c);
    join_losses(c, ours);
    expect_complete(names_in_replica(ours), reference);
    drop_statistics(ours);
    expect_equal(ours, reference, 1e-12);
  }
}

/// In a session of its own, since random numbers depend on what a session ran before.
void expect_random_numbers_of_one_process(int stages) {
  const int replicas = ranks_started() / stages;
  for (const auto& c : all_cases()) {
    if (!c.random) continue;
    SCOPED_TRACE(c.name);
    const auto reference = reference_of(c, replicas);
    const auto session = start(stages);
    auto ours = train_replica(c);
    join_losses(c, ours);
    expect_equal(ours, reference, 1e-12);
  }
}

TEST(ReplicaMasks, AreThoseOfTheMicrobatchInTheJob) {
  expect_random_numbers_of_one_process(1);
  expect_random_numbers_of_one_process(2);
}

class Replicas : public testing::TestWithParam<const char*> {};

TEST_P(Replicas, OfOneStage) { expect_as_in_one_process(1, GetParam()); }
TEST_P(Replicas, OfTwoStages) { expect_as_in_one_process(2, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Placements, Replicas, testing::Values("cluster", "spread"));

TEST(ReplicasOverMpi, NameOneThatHasFewerBatchesInsteadOfWaitingForIt) {
  const auto session = start(ranks_started() / 2);
  const auto c = all_cases().front();
  DistributedModel model(build(c, torch::kDouble));
  auto train = step([&](std::vector<Tensor> inputs) {
    const auto loss = model(inputs)[0];
    model.backward(loss);
    return loss;
  });
  const auto batch = batch_of(c, 0, torch::kDouble);
  for (int s = 0; s < 2; ++s) train(batch);
  if (dp_rank() == 1) return;
  const auto text = refusal<PeerLostError>([&] { train(batch); });
  if (pp_rank() > 0) return;  // hears it from its first stage
  EXPECT_THAT(text, testing::HasSubstr("rank 0: step 3 of this replica has none in another"));
  const auto other = group(Group::kDp)[1];
  EXPECT_THAT(text, testing::HasSubstr(base::concat("waits for rank ", other, ", but rank ", other,
                                                    " left after step 2")));
}

/// Of losses, gradients and final parameters of all steps.
std::uint64_t hash_of(const Trace& trace) {
  std::uint64_t hash = XXH3_64bits(trace.losses.data(), trace.losses.size() * sizeof(double));
  for (const auto* tensors : {&trace.gradients, &trace.finals}) {
    for (const auto& [name, tensor] : *tensors) {
      if (!tensor.defined()) continue;
      const auto plain = tensor.detach().to_dense().contiguous();
      hash = XXH3_64bits_withSeed(plain.data_ptr(), plain.nbytes(), hash);
    }
  }
  return hash;
}

TEST(ReplicaBits, AreTheSameInTenRunsWhateverTheBuckets) {
  std::set<std::uint64_t> hashes;
  for (int run = 0; run < 10; ++run) {
    const auto session = start(ranks_started() / 2, "cluster", run < 5 ? 25 : 1e-5);
    std::uint64_t all = 0;
    for (const auto& c : all_cases()) all = 31 * all + hash_of(train_replica(c));
    hashes.insert(all);
  }
  EXPECT_EQ(hashes.size(), 1u);
}

/// Gradients are with their owner only, and values come from there.
void expect_shards_to_change_nothing(int stages) {
  const auto cases = all_cases();
  for (std::size_t i = 0; i < cases.size(); i += 4) {
    SCOPED_TRACE(cases[i].name);
    Trace traces[2];
    for (const bool shard : {false, true}) {
      const auto session = start(stages, "cluster", 1e-4, shard);
      traces[shard] = train_replica(cases[i]);
      drop_statistics(traces[shard]);
    }
    EXPECT_EQ(traces[0].losses, traces[1].losses);
    ASSERT_EQ(traces[0].finals.size(), traces[1].finals.size());
    for (const auto& [name, value] : traces[0].finals) {
      EXPECT_TRUE(at::equal(value, traces[1].finals.at(name))) << name;
    }
  }
}

TEST(OptimizerShardsOverMpi, GiveTheBitsOfWholeStatesOnEveryReplica) {
  expect_shards_to_change_nothing(1);
  expect_shards_to_change_nothing(ranks_started() / 2);
}

}  // namespace replicas_mpi_test
}  // namespace smp::zoo
