// The order in which a rank began its work, kept to.
#include "schedule/work_order.h"

#include <gtest/gtest.h>

#include <memory>

namespace smp::schedule {
namespace {

constexpr auto kF = Phase::kForward, kB = Phase::kBackward;

Progress of(int microbatches) {
  Progress progress;
  progress.microbatches = microbatches;
  return progress;
}

TEST(WorkOrder, CountsFirstBeginnings) {
  WorkOrder order(3);
  order.note(kF, 1);
  order.note(kF, 0);
  order.note(kF, 1);
  EXPECT_FALSE(order.has_backward());
  order.note(kB, 1);
  EXPECT_TRUE(order.has_backward());
  order.note(Phase::kOptimizer, 0);
  order.note(kF, 3);
  order.note(kF, -1);
  EXPECT_EQ(order.place(kF, 1), 0);
  EXPECT_EQ(order.place(kF, 0), 1);
  EXPECT_EQ(order.place(kB, 1), 2);
  EXPECT_EQ(order.place(kB, 0), -1);
  EXPECT_EQ(order.place(Phase::kOther, 0), -1);
  EXPECT_EQ(order.place(kF, 3), -1);
}

TEST(RecordedOrder, PutsWhatBeganFirstFirst) {
  const auto interleaved = make_interleaved(4);
  WorkOrder order(3);
  order.note(kF, 0);
  order.note(kF, 1);
  order.note(kB, 0);
  const RecordedOrder recorded(*interleaved, order);
  const auto now = of(3);
  EXPECT_LT(interleaved->priority(kB, 0, now), interleaved->priority(kF, 1, now));
  EXPECT_LT(recorded.priority(kF, 0, now), recorded.priority(kF, 1, now));
  EXPECT_LT(recorded.priority(kF, 1, now), recorded.priority(kB, 0, now));
  EXPECT_LT(recorded.priority(kB, 0, now), recorded.priority(kB, 2, now)) << "not recorded";
  EXPECT_LT(recorded.priority(kB, 2, now), recorded.priority(kF, 2, now)) << "by the rule";
}

TEST(RecordedOrder, IsTheOtherScheduleInAllElse) {
  const auto interleaved = make_interleaved(2);
  WorkOrder order(3);
  order.note(kF, 2);
  const RecordedOrder recorded(*interleaved, order);
  EXPECT_STREQ(recorded.name(), "interleaved");
  auto two = of(4);
  for (const auto phase : {kF, kB}) {
    EXPECT_EQ(recorded.priority(phase, 2, two), interleaved->priority(phase, 2, two));
  }
  two.started = 2;
  EXPECT_FALSE(recorded.may_start(two));
  two.finished = 1;
  EXPECT_TRUE(recorded.may_start(two));
  EXPECT_TRUE(recorded.may_begin_backward(two));
}

}  // namespace
}  // namespace smp::schedule
