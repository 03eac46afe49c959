// Which samples each replica reads.
#include "smp/data/distributed_sampler.h"

#include <gmock/gmock.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <utility>
#include <vector>

#include "smp/smp.h"
#include "support/refusal.h"

namespace smp {
namespace distributed_sampler_test {

using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = std::vector<std::size_t>;

DistributedSampler sampler_of(std::size_t size, int replicas, int replica, bool drop_last,
                              bool shuffle = true, std::uint64_t seed = 0) {
  return DistributedSampler(size, {.shuffle = shuffle,
                                   .seed = seed,
                                   .drop_last = drop_last,
                                   .replicas = replicas,
                                   .replica = replica});
}

Numbers all_of(DistributedSampler& sampler, std::size_t batch = 3) {
  Numbers all;
  while (const auto numbers = sampler.next(batch)) {
    all.insert(all.end(), numbers->begin(), numbers->end());
  }
  return all;
}

/// Writes what `sampler` saves to `other`.
void load_saved(const DistributedSampler& sampler, DistributedSampler& other) {
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  other.load(in);
}

/// How often each of `size` samples is read by all replicas together.
Numbers times_read(std::size_t size, int replicas, bool drop_last) {
  Numbers times(size, 0);
  for (int replica = 0; replica < replicas; ++replica) {
    auto sampler = sampler_of(size, replicas, replica, drop_last);
    for (const auto number : all_of(sampler)) ++times.at(number);
  }
  return times;
}

TEST(DistributedSampler, GivesEachSampleToOneReplica) {
  EXPECT_EQ(times_read(12, 3, false), Numbers(12, 1));
}

TEST(DistributedSampler, PadsOrDropsSoThatReplicasHaveTheSameCount) {
  for (int replica = 0; replica < 3; ++replica) {
    EXPECT_EQ(sampler_of(13, 3, replica, false).samples(), 5u);
    EXPECT_EQ(sampler_of(13, 3, replica, true).samples(), 4u);
  }
  const auto padded = times_read(13, 3, false);
  EXPECT_EQ(std::count(padded.begin(), padded.end(), 2), 2);
  EXPECT_EQ(std::count(padded.begin(), padded.end(), 0), 0);
  const auto dropped = times_read(13, 3, true);
  EXPECT_EQ(std::count(dropped.begin(), dropped.end(), 0), 1);
  EXPECT_EQ(std::count(dropped.begin(), dropped.end(), 2), 0);
}

TEST(DistributedSampler, PadsMoreThanOnceAround) {
  const auto times = times_read(2, 5, false);
  EXPECT_EQ(times[0] + times[1], 5u);
  auto last = sampler_of(2, 5, 4, false, /*shuffle=*/false);
  EXPECT_THAT(all_of(last), ElementsAre(0));
}

TEST(DistributedSampler, DealsInTurn) {
  auto second = sampler_of(7, 2, 1, false, /*shuffle=*/false);
  EXPECT_THAT(*second.next(3), ElementsAre(1, 3, 5));
  EXPECT_THAT(*second.next(3), ElementsAre(0));
  EXPECT_FALSE(second.next(3));
}

TEST(DistributedSampler, ShufflesByEpochAndSeed) {
  auto one = sampler_of(50, 2, 0, false), other = sampler_of(50, 2, 0, false);
  auto seeded = sampler_of(50, 2, 0, false, true, 1);
  const auto first = all_of(one);
  EXPECT_EQ(first, all_of(other));
  EXPECT_NE(first, all_of(seeded));
  one.set_epoch(1);
  other.reset();  // the pass is over: the next epoch
  const auto second = all_of(one);
  EXPECT_NE(first, second);
  EXPECT_EQ(second, all_of(other));
}

TEST(DistributedSampler, IsNotAnEpochFurtherWhereNothingWasRead) {
  auto sampler = sampler_of(50, 2, 0, false);
  sampler.reset();
  EXPECT_EQ(sampler.epoch(), 0u);
}

TEST(DistributedSampler, GoesOnWhereItWasSaved) {
  auto sampler = sampler_of(20, 2, 1, false);
  sampler.set_epoch(3);
  sampler.next(4);
  auto again = sampler_of(20, 2, 1, false);
  load_saved(sampler, again);
  auto in_a_loader = again;
  const auto rest = all_of(sampler);
  EXPECT_EQ(all_of(again), rest);
  in_a_loader.reset();  // as each pass of a data loader begins
  EXPECT_EQ(all_of(in_a_loader), rest);
  in_a_loader.reset();
  EXPECT_EQ(in_a_loader.epoch(), 4u);
  EXPECT_EQ(in_a_loader.next(20)->size(), 10u);
}

TEST(DistributedSampler, OfAFinishedEpochGoesOnWithTheNext) {
  auto sampler = sampler_of(20, 2, 1, false);
  all_of(sampler);
  auto again = sampler_of(20, 2, 1, false);
  load_saved(sampler, again);
  again.reset();
  EXPECT_EQ(again.epoch(), 1u);
  EXPECT_EQ(all_of(again).size(), 10u);
}

/// Whatever number of replicas goes on: what all have read counts.
TEST(DistributedSampler, GoesOnAmongMoreOrFewerReplicas) {
  auto sampler = sampler_of(24, 2, 0, false);
  sampler.next(6);
  for (const auto& [replicas, left] : std::vector<std::pair<int, std::size_t>>{
           {1, 12}, {2, 6}, {3, 4}, {4, 3}, {8, 2}}) {  // of 8 replicas each has read 1.5
    auto other = sampler_of(24, replicas, 0, false);
    load_saved(sampler, other);
    EXPECT_EQ(all_of(other).size(), left) << replicas;
  }
}

TEST(DistributedSampler, RefusesWhatLeavesAReplicaWithoutSamples) {
  EXPECT_THAT(refusal([] { sampler_of(2, 3, 0, true); }),
              HasSubstr("2 samples for 3 replicas leave one without any"));
  EXPECT_THAT(refusal([] { sampler_of(9, 3, 3, true); }), HasSubstr("replica 3 of 3"));
}

TEST(DistributedSampler, ReadsForTheReplicaOfItsRank) {
  Config config;
  config.pipeline_parallel_degree = 2;
  run_local(
      4,
      [] {
        DistributedSampler sampler(6, {.shuffle = false});
        const Numbers expected = dp_rank() == 0 ? Numbers{0, 2, 4} : Numbers{1, 3, 5};
        EXPECT_EQ(all_of(sampler), expected) << "rank " << rank();
      },
      config);
}

}  // namespace distributed_sampler_test
}  // namespace smp
