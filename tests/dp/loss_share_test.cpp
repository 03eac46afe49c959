// What a replica's loss counts in that of the global batch.
#include "dp/loss_share.h"

#include <gtest/gtest.h>

namespace smp::dp {
namespace loss_share_test {

TEST(LossShare, IsOneWhereReplicasHaveTheSameRows) {
  for (std::size_t replica = 0; replica < 3; ++replica) {
    EXPECT_EQ(loss_share("mean", {7, 7, 7}, replica), 1.0);
  }
}

TEST(LossShare, OfAMeanIsByRows) {
  EXPECT_DOUBLE_EQ(loss_share("mean", {6, 2}, 0), 1.5);  // the mean of 1.5 a and 0.5 b
  EXPECT_DOUBLE_EQ(loss_share("mean", {6, 2}, 1), 0.5);
}

TEST(LossShare, OfASumUndoesTheMeanOverReplicas) { EXPECT_EQ(loss_share("sum", {6, 2}, 1), 2.0); }

TEST(LossShare, OfOwnWeightsIsOne) { EXPECT_EQ(loss_share("weights", {6, 2}, 0), 1.0); }

TEST(LossShare, WithoutRowsIsOne) { EXPECT_EQ(loss_share("mean", {-1, -1}, 0), 1.0); }

// Two of four have batches a and b; the two others count as zero in the mean over four.
TEST(LossShare, OfActiveReplicasMayCountAllOrThemselvesOnly) {
  EXPECT_EQ(active_share("mean", 2, 4, true), 1.0) << "(a + b) / 4";
  EXPECT_EQ(active_share("mean", 2, 4, false), 2.0) << "(a + b) / 2";
  EXPECT_EQ(active_share("weights", 2, 4, true), 1.0);
  EXPECT_EQ(active_share("weights", 2, 4, false), 2.0);
  EXPECT_EQ(active_share("mean", 4, 4, false), 1.0);
}

TEST(LossShare, OfASumIsThatOfWhatThereIs) {
  for (const bool all : {true, false}) {
    EXPECT_EQ(loss_share("sum", {5, 5}, 0) * active_share("sum", 2, 4, all), 4.0) << "a + b";
  }
}

}  // namespace loss_share_test
}  // namespace smp::dp
