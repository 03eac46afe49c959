// A fiber that is about to compute lets those go first that go before it.
#include "server/running/turn_taker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "fiber/sim_clock.h"

namespace smp::server {
namespace {

using schedule::is_passing_on;
using schedule::passing_on;
using ::testing::ElementsAre;

/// Simulated time, but fibers by priority.
class TurnTakerTest : public ::testing::Test {
 protected:
  TurnTakerTest() {
    clock_.random_choice = false;
    scheduler_.set_simulation(&clock_);
  }
  ~TurnTakerTest() override {
    finish();
    scheduler_.set_simulation(nullptr);
  }
  void spawn(fiber::Priority priority, std::function<void()> body) {
    ++running_;
    scheduler_.spawn(
        [this, body = std::move(body)] {
          body();
          if (--running_ == 0) ended_.signal();
        },
        {}, 1 << 20, priority);
  }
  void finish() {
    while (running_ > 0) ended_.wait({"the test", "", -1, -1});
  }
  /// A fiber takes its turn with others of priorities 1, 3 and 5 ready: the order in which they
  /// run.
  std::vector<int> order_with(fiber::Priority priority) {
    std::vector<int> order;
    spawn(passing_on(-1), [&, priority] {
      for (const int other : {5, 1, 3}) spawn(other, [&order, other] { order.push_back(other); });
      fiber::current_fiber()->priority = priority;
      turns_.take_turn();
      order.push_back(0);
      EXPECT_FALSE(is_passing_on(fiber::current_fiber()->priority));
    });
    finish();
    return order;
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  fiber::SimClock clock_{1};
  TurnTaker turns_{scheduler_};

 private:
  int running_ = 0;
  fiber::Event ended_;
};

TEST_F(TurnTakerTest, WhoPassesAnAnswerOnGivesWayOnceItComputes) {
  EXPECT_THAT(order_with(passing_on(2)), ElementsAre(1, 0, 3, 5));
  EXPECT_THAT(order_with(passing_on(9)), ElementsAre(1, 3, 5, 0));
  EXPECT_THAT(order_with(passing_on(0)), ElementsAre(0, 1, 3, 5));
}

TEST_F(TurnTakerTest, WhoComputesAlreadyGoesOn) {
  EXPECT_THAT(order_with(2), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(order_with(9), ElementsAre(0, 1, 3, 5));
}

TEST_F(TurnTakerTest, ATurnIsTakenOncePerAnswer) {
  std::vector<int> order;
  spawn(passing_on(2), [&] {
    turns_.take_turn();
    spawn(1, [&] { order.push_back(1); });
    turns_.take_turn();
    order.push_back(2);
  });
  finish();
  EXPECT_THAT(order, ElementsAre(2, 1));
}

TEST_F(TurnTakerTest, WhoAwaitedAnAnswerPassesItOnBeforeAllThatCompute) {
  fiber::Event answer;
  std::vector<int> order;
  spawn(5, [&] {
    await_answer(answer, {"forward", "encoder", 1, 0});
    EXPECT_TRUE(is_passing_on(fiber::current_fiber()->priority));
    order.push_back(5);
  });
  scheduler_.sleep_for(1, {"the test", "", -1, -1});
  EXPECT_TRUE(scheduler_.any_waiting_for_peer());
  spawn(0, [&] { order.push_back(0); });
  answer.signal();
  finish();
  EXPECT_THAT(order, ElementsAre(5, 0));
}

TEST_F(TurnTakerTest, ANewPriorityLeavesPassingOnAsItIs) {
  spawn(3, [] {
    set_priority(7);
    EXPECT_EQ(fiber::current_fiber()->priority, 7);
    fiber::current_fiber()->priority = passing_on(3);
    set_priority(8);
    EXPECT_EQ(fiber::current_fiber()->priority, passing_on(8));
  });
}

TEST_F(TurnTakerTest, InRealTimeALongComputationIsFollowedByALookForAnswers) {
  finish();
  scheduler_.set_simulation(nullptr);
  fiber::Event answer;
  std::vector<int> order;
  spawn(1, [&] {
    await_answer(answer, {"forward", "encoder", 1, 0});
    order.push_back(1);
  });
  scheduler_.sleep_for(base::kMillisecond, {"the test", "", -1, -1});
  bool arrived = false;
  const auto poll = scheduler_.add_poll([&] {
    if (!std::exchange(arrived, true)) answer.signal();
    return true;
  });
  spawn(2, [&] {
    turns_.take_turn();  // the last turn was long ago
    order.push_back(2);
  });
  finish();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

}  // namespace
}  // namespace smp::server
