// The order in which fibers that are ready go on.
#include "simulate/ready_queue.h"

#include <gmock/gmock.h>

#include <vector>

#include "schedule/yield_policy.h"

namespace smp::simulate {
namespace {

using schedule::passing_on;
using testing::ElementsAre;

std::vector<int> drained(ReadyQueue queue) {
  std::vector<int> fibers;
  while (!queue.empty()) fibers.push_back(queue.pop());
  return fibers;
}

TEST(ReadyQueue, GoesByPriorityThenByArrival) {
  ReadyQueue queue;
  queue.push(1, 5);
  queue.push(2, 3);
  queue.push(3, 5);
  queue.push(4, 3);
  EXPECT_EQ(queue.first(), 2);
  EXPECT_THAT(drained(queue), ElementsAre(2, 4, 1, 3));
}

TEST(ReadyQueue, ThoseThatPassAnAnswerOnGoFirst) {
  ReadyQueue queue;
  queue.push(1, 0);
  queue.push(2, passing_on(9));
  queue.push(3, passing_on(8));
  EXPECT_THAT(drained(queue), ElementsAre(3, 2, 1));
}

TEST(ReadyQueue, WhoGaveWayGoesBeforeItsEquals) {
  ReadyQueue queue;
  queue.push(1, 5);
  queue.push_first(2, 5);
  queue.push(3, 4);
  EXPECT_THAT(drained(queue), ElementsAre(3, 2, 1));
}

TEST(ReadyQueue, EqualsNeedNotGoBefore) {
  ReadyQueue queue;
  EXPECT_FALSE(queue.has_before(5));
  queue.push(1, 5);
  EXPECT_FALSE(queue.has_before(5));
  EXPECT_TRUE(queue.has_before(6));
  EXPECT_FALSE(queue.has_before(passing_on(6)));
}

}  // namespace
}  // namespace smp::simulate
