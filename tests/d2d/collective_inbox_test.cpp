// Messages of collectives wait for the call that they belong to, and no longer.
#include "d2d/collective_inbox.h"

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

}  // namespace collective_inbox_test
}  // namespace smp::d2d
