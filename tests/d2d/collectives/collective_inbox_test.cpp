// Messages of collectives wait for the call that they belong to, and no longer.
#include "d2d/collectives/collective_inbox.h"

#include <gtest/gtest.h>

namespace smp::d2d {
namespace collective_inbox_test {

TEST(CollectiveInbox, KeepsNothingOfCollectivesThatAreOver) {
  CollectiveInbox inbox{GlobalRank(0)};
  const CollectiveCall call;
  const auto message = [&inbox](const CollectiveId& id) {
    inbox.deliver(GlobalRank(1), id, CollectivePhase::kExchange, {});
  };
  const CollectiveId early{{7, 0}, 0};
  message(early);
  EXPECT_EQ(inbox.open(), 1u) << "will be called";
  EXPECT_EQ(inbox.begin({7, 0}, call), early);
  inbox.end(early);
  EXPECT_EQ(inbox.open(), 0u);
  const CollectiveId failed = inbox.begin({7, 0}, call);
  inbox.end(failed);
  message(failed);
  EXPECT_EQ(inbox.open(), 0u) << "came too late";
  message({{7, 0}, failed.number + 1});
  message({{7, 1}, 0});
  EXPECT_EQ(inbox.open(), 2u) << "the next one, and one of another lane";
}

TEST(CollectiveInbox, ForgetsEpochsThatAreOverAndNoOthers) {
  CollectiveInbox inbox{GlobalRank(0)};
  const CollectiveCall call;
  const auto message = [&inbox](const CollectiveId& id) {
    inbox.deliver(GlobalRank(1), id, CollectivePhase::kExchange, {});
  };
  for (std::uint64_t epoch = 0; epoch <= 3; ++epoch) {
    inbox.end(inbox.begin({7, 1, epoch}, call));
    message({{7, 2, epoch}, 0});
  }
  EXPECT_EQ(inbox.lanes(), 4u);
  EXPECT_EQ(inbox.open(), 4u);
  inbox.end_epoch(2);
  EXPECT_EQ(inbox.lanes(), 2u) << "of epoch 3, and the one that is for good";
  EXPECT_EQ(inbox.open(), 2u);
  message({{7, 5, 1}, 0});
  message({{7, 5, 2}, 0});
  EXPECT_EQ(inbox.open(), 2u) << "came too late";
  message({{7, 5, 3}, 0});
  EXPECT_EQ(inbox.open(), 3u);
}

TEST(CollectiveInbox, KeepsNothingOfNumbersThatAreLeftOut) {
  CollectiveInbox inbox{GlobalRank(0)};
  const CollectiveCall call;
  const CollectiveLane lane{7, 3};
  const auto message = [&inbox](const CollectiveId& id) {
    inbox.deliver(GlobalRank(1), id, CollectivePhase::kExchange, {});
  };
  for (const std::uint64_t number : {2, 4, 5, 9}) message({lane, number});
  message({{7, 4}, 2});
  inbox.leave_out(lane, 4);
  EXPECT_EQ(inbox.open(), 3u) << "5, 9, and one of another lane";
  message({lane, 3});
  EXPECT_EQ(inbox.open(), 3u) << "came too late";
  const auto id = inbox.begin(lane, 9, call);
  EXPECT_EQ(id.number, 9u);
  EXPECT_TRUE(inbox.has_come(id, CollectivePhase::kExchange, GlobalRank(1)));
  EXPECT_FALSE(inbox.has_come(id, CollectivePhase::kResult, GlobalRank(1)));
  EXPECT_EQ(inbox.open(), 2u) << "5 was left out";
  inbox.end(id);
  inbox.leave_out(lane, 8);
  EXPECT_EQ(inbox.begin(lane, 10, call).number, 10u) << "what is over stays so";
}

}  // namespace collective_inbox_test
}  // namespace smp::d2d
