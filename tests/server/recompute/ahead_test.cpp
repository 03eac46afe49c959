// When a rank computes a call ahead: after whatever else it has to do; and what becomes of it.
#include "server/recompute/ahead.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fiber/scheduler.h"

namespace smp::server {
namespace ahead_test {

constexpr std::int64_t kBytes = 100;
using Names = std::vector<std::string>;

class RecomputeAheadQueue : public testing::Test {
 protected:
  class Call final : public AheadCall {
   public:
    Call(Names& log, std::string name) : log_(log), name_(std::move(name)) {}
    void compute_ahead() noexcept override { log_.push_back(name_); }
    void let_go() noexcept override { log_.push_back("without " + name_); }
    std::int64_t bytes_ahead() const noexcept override { return kBytes; }

   private:
    Names& log_;
    const std::string name_;
  };

  RecomputeAheadQueue() { fiber::Scheduler::install(); }

  void begin(RecomputeAhead::Credit credit, int microbatches = 4, int enough = 2,
             std::function<bool()> is_kept_free = {}) {
    queue_.set_credit(credit);
    begin_again(microbatches, enough, std::move(is_kept_free));
  }
  void begin_again(int microbatches = 4, int enough = 2, std::function<bool()> is_kept_free = {}) {
    schedule::AheadOrder order;
    for (int i = 0; i < microbatches; ++i) order.turns.push_back(i);
    order.last = microbatches - 1;
    queue_.begin_step(
        {order, enough, 256 << 10, std::move(is_kept_free), [this] { return failed_; }});
  }
  RecomputeAhead::Place add(int microbatch, const std::string& name, bool of_body = false) {
    calls_.push_back(std::make_shared<Call>(log_, name));
    return queue_.add(calls_.back(), microbatch, of_body);
  }
  /// What it does while this fiber waits.
  Names idle() {
    static constexpr fiber::WaitReason kWait{"the test", "", -1, -1};
    fiber::Scheduler::instance().sleep_for(2 * base::kMillisecond, kWait);
    return std::exchange(log_, {});
  }

  RecomputeAhead queue_;
  std::vector<std::shared_ptr<Call>> calls_;
  Names log_;
  bool failed_ = false;
};

TEST_F(RecomputeAheadQueue, HoldsOneCallUntilItsBackwardHasUsedItUp) {
  begin({});
  const auto a = add(0, "a"), b = add(1, "b");
  EXPECT_EQ(idle(), Names{"a"});
  queue_.began(a);
  EXPECT_EQ(idle(), Names()) << "it is still there";
  queue_.ended(a);
  add(2, "c");
  EXPECT_EQ(idle(), Names{"b"});
  queue_.began(b);
  queue_.ended(b);
  EXPECT_EQ(queue_.most_bytes(), kBytes);
  queue_.end_step(true);
}

TEST_F(RecomputeAheadQueue, LetsEverybodyElseGoFirst) {
  begin({}, 1);
  add(0, "a");
  auto& scheduler = fiber::Scheduler::instance();
  scheduler.spawn(
      [&] {
        for (int i = 0; i < 3; ++i) {
          log_.push_back("work");
          scheduler.yield();
        }
      },
      *base::current_fiber_slots(), 256 << 10, /*priority=*/1'000'000);
  EXPECT_EQ(idle(), (Names{"work", "work", "work", "a"}));
  queue_.end_step(false);
}

TEST_F(RecomputeAheadQueue, WaitsWhileTheRankIsKeptFree) {
  bool free = true;
  begin({}, 1, 1, [&] { return free; });
  add(0, "a");
  EXPECT_EQ(idle(), Names());
  free = false;
  EXPECT_EQ(idle(), Names{"a"});
  queue_.end_step(false);
}

/// As when bodies call no backward: it would only cost.
TEST_F(RecomputeAheadQueue, LetsGoOfWhatNobodyAskedForAndStops) {
  begin({}, 1);
  add(0, "a");
  idle();
  queue_.end_step(true);
  EXPECT_EQ(idle(), Names{"without a"});
  begin_again(1);
  add(0, "b");
  EXPECT_EQ(idle(), Names());
  queue_.end_step(true);
  begin({}, 1);
  add(0, "c");
  EXPECT_EQ(idle(), Names{"c"}) << "what was set anew begins anew";
  queue_.end_step(false);
  idle();
  begin_again(1);
  add(0, "d");
  EXPECT_EQ(idle(), Names{"d"}) << "a step that failed says nothing";
  queue_.end_step(false);
}

/// Training goes on when evaluation, or another step, calls no backward.
TEST_F(RecomputeAheadQueue, StopsInStepsOfTheSameKindOnly) {
  begin({}, 1);
  queue_.end_step(true);
  queue_.set_kind(1);
  begin_again(1);
  add(0, "a");
  idle();
  queue_.end_step(true);
  begin_again(1);
  add(0, "b");
  idle();
  queue_.end_step(true);
  queue_.set_kind(2);
  log_.clear();
  begin_again(1);
  add(0, "c");
  EXPECT_EQ(idle(), Names{"c"});
  queue_.end_step(false);
  log_.clear();
  queue_.set_kind(1);
  begin_again(1);
  add(0, "d");
  EXPECT_EQ(idle(), Names());
  queue_.end_step(true);
}

/// Such as one whose microbatches run one after the other.
TEST_F(RecomputeAheadQueue, LearnsNothingFromAStepThatComputesNothingAhead) {
  begin({}, 1);
  add(0, "a");
  idle();
  queue_.end_step(true);
  queue_.set_kind(1);
  queue_.end_step(true);  // it has not begun
  log_.clear();
  begin_again(1);
  add(0, "b");
  EXPECT_EQ(idle(), Names{"b"});
  queue_.end_step(false);
}

TEST_F(RecomputeAheadQueue, FollowsTheOrderOfTheStep) {
  queue_.set_credit({.one_call = false, .bytes = 10 * kBytes});
  queue_.begin_step({{{2, 0, 1}, 1}, 3, 256 << 10});
  add(0, "a");
  add(2, "c");
  EXPECT_EQ(idle(), Names());
  const auto b = add(1, "b");
  EXPECT_EQ(idle(), Names{"b"});
  queue_.began(b);
  EXPECT_EQ(idle(), Names{"c"});
  queue_.end_step(false);
}

/// What it has called may use variables that are gone.
TEST_F(RecomputeAheadQueue, LeavesOutWhatABodyThatHasEndedHasCalled) {
  begin({.one_call = false, .bytes = 2 * kBytes}, 2, 1);
  add(0, "a", /*of_body=*/true);
  add(0, "b", /*of_body=*/true);
  add(0, "c");
  EXPECT_EQ(idle(), (Names{"c", "b"}));
  add(1, "d", /*of_body=*/true);
  add(0, "e");
  queue_.body_ended(0);
  EXPECT_EQ(idle(), (Names{"without b", "e"})) << "and there is room again";
  queue_.body_ended(1);
  EXPECT_EQ(idle(), Names());
  queue_.end_step(false);
  EXPECT_EQ(idle(), (Names{"without e", "without c"}));
  queue_.body_ended(0);
}

TEST_F(RecomputeAheadQueue, StopsWhenTheStepFails) {
  bool free = true;
  begin({}, 1, 1, [&] { return free; });
  const auto before = fiber::Scheduler::instance().live_fibers();
  add(0, "a");
  idle();
  EXPECT_EQ(fiber::Scheduler::instance().live_fibers(), before + 1);
  failed_ = true;
  EXPECT_EQ(idle(), Names());
  EXPECT_EQ(fiber::Scheduler::instance().live_fibers(), before) << "it does not wait for the end";
  free = false;
  add(0, "b");
  EXPECT_EQ(idle(), Names());
  queue_.end_step(false);
}

/// As LibTorch's own engine has for devices: what it frees is freed there.
TEST_F(RecomputeAheadQueue, ThreadsWithoutFibersStartNothing) {
  begin({}, 1);
  add(0, "a");
  const auto b = add(0, "b");
  EXPECT_EQ(idle(), Names{"b"});
  std::thread([&] { queue_.ended(b); }).join();
  EXPECT_EQ(idle(), Names());
  add(0, "c");
  EXPECT_EQ(idle(), Names{"c"});
  queue_.end_step(false);
}

TEST_F(RecomputeAheadQueue, CallsThatAreGoneAreNoCalls) {
  begin({}, 1);
  const auto a = add(0, "a");
  add(0, "b");
  calls_.clear();
  EXPECT_EQ(idle(), Names());
  queue_.ended(a);
  queue_.end_step(true);
  add(0, "c");
  EXPECT_EQ(idle(), Names()) << "no step runs";
}

}  // namespace ahead_test
}  // namespace smp::server
