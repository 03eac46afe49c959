// What travels together: torch DDP's rule.
#include "dp/bucket_plan.h"

#include <gmock/gmock.h>

namespace smp::dp {
namespace bucket_plan_test {

using testing::ElementsAre;
constexpr auto kFloat = c10::ScalarType::Float;
constexpr auto kDouble = c10::ScalarType::Double;
constexpr std::int64_t kMiB = 1 << 20;

TEST(BucketPlan, TakesTheLastTensorsFirst) {
  EXPECT_THAT(plan_buckets({{kFloat, 8}, {kFloat, 8}, {kFloat, 8}}, kMiB),
              ElementsAre(ElementsAre(2, 1, 0)));
}

TEST(BucketPlan, ClosesABucketThatHasTheCap) {
  EXPECT_THAT(plan_buckets({{kFloat, 1}, {kFloat, 60}, {kFloat, 60}, {kFloat, 100}}, 100),
              ElementsAre(ElementsAre(3), ElementsAre(2, 1), ElementsAre(0)));
}

TEST(BucketPlan, KeepsTheFirstBucketSmall) {
  const std::vector<TensorSize> tensors(30, {kFloat, kMiB});
  const auto buckets = plan_buckets(tensors, 25 * kMiB);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].size(), 1u);
  EXPECT_EQ(buckets[1].size(), 25u);
  EXPECT_EQ(buckets[2].size(), 4u);
}

TEST(BucketPlan, DoesNotMixTypes) {
  EXPECT_THAT(plan_buckets({{kFloat, 8}, {kDouble, 8}, {kFloat, 8}, {kDouble, 8}}, kMiB),
              ElementsAre(ElementsAre(3, 1), ElementsAre(2, 0)));
}

TEST(BucketPlan, OfNothingIsEmpty) { EXPECT_TRUE(plan_buckets({}, kMiB).empty()); }

}  // namespace bucket_plan_test
}  // namespace smp::dp
