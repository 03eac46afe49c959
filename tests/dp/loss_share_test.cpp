// What a replica's loss counts in that of the global batch: the gradients of all replicas are added
// up as they are.
#include "dp/loss_share.h"

#include <gtest/gtest.h>

namespace smp::dp {
namespace loss_share_test {

TEST(LossShare, OfAMeanIsByRows) {
  for (std::size_t replica = 0; replica < 4; ++replica) {
    EXPECT_EQ(loss_share("mean", {7, 7, 7, 7}, replica), 0.25);
  }
  EXPECT_DOUBLE_EQ(loss_share("mean", {6, 2}, 0), 0.75);
  EXPECT_DOUBLE_EQ(loss_share("mean", {6, 2}, 1), 0.25);
}

TEST(LossShare, OfASumIsOne) { EXPECT_EQ(loss_share("sum", {6, 2}, 1), 1.0); }

TEST(LossShare, OfOwnWeightsMakesAMeanOverReplicas) {
  EXPECT_EQ(loss_share("weights", {6, 2}, 0), 0.5);
}

TEST(LossShare, WithoutRowsIsAsMuchAsThatOfAnyOther) {
  EXPECT_EQ(loss_share("mean", {-1, -1}, 0), 0.5);
}

// Two of four have batches a and b; the two others count as zero in the mean over four.
TEST(LossShare, OfActiveReplicasMayCountAllOrThemselvesOnly) {
  for (const auto* loss : {"mean", "weights"}) {
    const auto of_two = loss_share(loss, {5, 5}, 0);
    EXPECT_EQ(of_two * active_share(loss, 2, 4, true), 0.25) << "(a + b) / 4";
    EXPECT_EQ(of_two * active_share(loss, 2, 4, false), 0.5) << "(a + b) / 2";
  }
  EXPECT_EQ(active_share("mean", 4, 4, false), 1.0);
}

TEST(LossShare, OfASumIsThatOfWhatThereIs) {
  for (const bool all : {true, false}) {
    EXPECT_EQ(loss_share("sum", {5, 5}, 0) * active_share("sum", 2, 4, all), 1.0) << "a + b";
  }
}

}  // namespace loss_share_test
}  // namespace smp::dp
