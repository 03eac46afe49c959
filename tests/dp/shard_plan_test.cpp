// Shards are even, and whatever travels together is complete, of one dtype, and from its owner.
#include "dp/shard_plan.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace smp::dp {
namespace shard_plan_test {

using Bytes = std::vector<std::int64_t>;

std::int64_t most_of(const Bytes& loads) { return *std::max_element(loads.begin(), loads.end()); }

/// The least that the fullest of `replicas` can have, by trying every deal.
std::int64_t least_possible(const Bytes& bytes, std::size_t next, Bytes& loads) {
  if (next == bytes.size()) return most_of(loads);
  auto best = std::numeric_limits<std::int64_t>::max();
  for (auto& load : loads) {
    load += bytes[next];
    best = std::min(best, least_possible(bytes, next + 1, loads));
    load -= bytes[next];
  }
  return best;
}

RC_GTEST_PROP(ShardPlan, IsWithinAThirdOfTheBest, ()) {
  const auto replicas = *rc::gen::inRange(1, 4);
  auto bytes = *rc::gen::container<Bytes>(rc::gen::inRange(0, 50));
  bytes.resize(std::min<std::size_t>(bytes.size(), 8));
  Bytes loads(replicas), none(replicas);
  const auto owners = plan_shards(bytes, loads);
  Bytes sums(replicas);
  for (std::size_t i = 0; i < bytes.size(); ++i) sums.at(owners.at(i)) += bytes[i];
  RC_ASSERT(sums == loads);
  // Graham's bound: 4/3 - 1/(3 n).
  RC_ASSERT(3 * replicas * most_of(loads) <= (4 * replicas - 1) * least_possible(bytes, 0, none));
}

TEST(ShardPlan, FillsUpWhoHasLeast) {
  Bytes loads{100, 0, 30};
  EXPECT_EQ(plan_shards({10, 80, 60}, loads), (std::vector<int>{1, 1, 2}));
  EXPECT_EQ(loads, (Bytes{100, 90, 90}));
}

TEST(ShardPlan, TellsTheOwnersOfSomeParameters) {
  const std::vector<int> owners{2, -1, 0, -1, 1};
  EXPECT_EQ(owners_among(owners, {4, 0, 2}), (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(owners_among(owners, {3, 1}), std::vector<int>());
  EXPECT_EQ(owners_among({}, {0, 1}), std::vector<int>());
}

RC_GTEST_PROP(ShardRounds, HaveEveryOwnedTensorOnceWithItsOwner, ()) {
  const auto replicas = *rc::gen::inRange(1, 5);
  const auto count = *rc::gen::inRange<std::size_t>(0, 30);
  std::vector<TensorSize> tensors;
  std::vector<int> owners;
  for (std::size_t i = 0; i < count; ++i) {
    tensors.push_back({*rc::gen::element(c10::kFloat, c10::kDouble), *rc::gen::inRange(0, 100)});
    owners.push_back(*rc::gen::inRange(-1, replicas));
  }
  const std::int64_t cap = *rc::gen::inRange(1, 400);
  std::vector<int> seen(count);
  for (const auto& round : plan_rounds(tensors, owners, replicas, cap)) {
    RC_ASSERT(round.of_owner.size() == static_cast<std::size_t>(replicas));
    for (int owner = 0; owner < replicas; ++owner) {
      const auto& numbers = round.of_owner[static_cast<std::size_t>(owner)];
      std::int64_t bytes = 0, last = 0;
      for (const auto i : numbers) {
        RC_ASSERT(owners.at(i) == owner);
        RC_ASSERT(tensors[i].dtype == round.dtype);
        bytes += last = tensors[i].bytes;
        ++seen[i];
      }
      RC_ASSERT(numbers.empty() || bytes - last < std::max<std::int64_t>(1, cap / replicas));
    }
  }
  for (std::size_t i = 0; i < count; ++i) RC_ASSERT(seen[i] == (owners[i] >= 0 ? 1 : 0));
}

}  // namespace shard_plan_test
}  // namespace smp::dp
