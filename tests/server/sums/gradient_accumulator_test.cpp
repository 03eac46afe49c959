// The order of sums: within a microbatch by descending order key, then microbatch by microbatch,
// whatever the order of arrival (docs/design.md, Accumulation).
#include "server/sums/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <vector>

#include "fiber/scheduler.h"
#include "server/running/execution_scope.h"
#include "server/sums/gradient_accumulator_testing.h"
#include "smp/error.h"

namespace smp::server::test {
namespace gradient_accumulator_test {

using testing::ElementsAre;
using testing::IsEmpty;

// ---- microbatches ------------------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, TakesMicrobatchesInOrder) {
  std::vector<ExecutionId> ids;
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    ids.push_back(record(microbatch));
    accumulator_.mark_forward_done(microbatch);
  }
  put_and_close(ids[2], 4);
  put_and_close(ids[1], 2);
  EXPECT_THAT(weight_.applied, IsEmpty());
  EXPECT_EQ(accumulator_.waiting().bytes(), 2 * sizeof(float));
  put_and_close(ids[0], 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2, 4));
  EXPECT_EQ(weight_.grad(), 7);
  EXPECT_EQ(accumulator_.waiting().bytes(), 0u);
  EXPECT_EQ(accumulator_.waiting().most_bytes(), 2 * sizeof(float));
}

/// Whichever pass completes the sum: it may have no code of the user's itself.
TEST_F(GradientAccumulatorTest, WhatAHookSwitchesIsLookedFor) {
  fiber::Scheduler::install();
  const base::SteadyClock clock;
  ScopeServices services(GlobalRank(0), clock);
  torch::nn::Linear layer(2, 2);
  services.settings.attach(*layer);
  services.settings.begin_step();
  ExecutionScope scope(services, {kBody, 0, schedule::Phase::kForward, false, {}}, {}, 1);
  const OwnCodeOnly own(&scope.settings());
  const auto trains_for_another_one = [&] {
    scope.on_switch(false);
    services.settings.apply(services.settings.base());
    const bool trains = layer->is_training();
    scope.on_switch(true);
    return trains;
  };
  EXPECT_TRUE(trains_for_another_one());
  weight_.on_hook = [&] { layer->eval(); };
  const auto id = record(0);
  accumulator_.mark_forward_done(0);
  put_and_close(id, 1);
  EXPECT_FALSE(layer->is_training());
  EXPECT_TRUE(trains_for_another_one());
  EXPECT_FALSE(layer->is_training()) << "the hook's own";
}

TEST_F(GradientAccumulatorTest, WaitsForTheForwardToEnd) {
  put_and_close(record(0), 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_forward_done(0);
  EXPECT_THAT(weight_.applied, IsEmpty());  // a mark does nothing yet
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, WaitsForTheForwardOfLowerMicrobatches) {
  const auto second = record(1);
  accumulator_.mark_forward_done(1);
  put_and_close(second, 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_forward_done(0);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, TakesAMicrobatchWhoseBodyNeverCalledBackward) {
  record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(1);
  put_and_close(second, 1);
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.mark_microbatch_done(0);
  accumulator_.settle();
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

// ---- executions of one microbatch --------------------------------------------------------------

TEST_F(GradientAccumulatorTest, SumsAMicrobatchFromItsLastExecutionToItsFirst) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  const auto third = record(0, call_path({2}));
  accumulator_.mark_forward_done(0);
  // In this order the sum is 1; in order of arrival it would be 0.
  put_and_close(first, 1);
  put_and_close(third, 1e30F);
  EXPECT_THAT(weight_.applied, IsEmpty());
  put_and_close(second, -1e30F);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
}

/// Another rank ran ahead, so what is last in the program is opened first.
TEST_F(GradientAccumulatorTest, SumsInProgramOrderThoughExecutionsArriveInAnother) {
  std::vector<int> arrival{0, 1, 2};
  do {
    std::vector<ExecutionId> ids(3);
    for (const int call : arrival)
      ids[call] = record(0, call_path({static_cast<std::uint32_t>(call)}));
    accumulator_.mark_forward_done(0);
    const float gradients[] = {1, -1e30F, 1e30F};
    for (const int call : arrival) put_and_close(ids[call], gradients[call]);
    EXPECT_THAT(weight_.applied, ElementsAre(1));
    weight_.applied.clear();
    accumulator_.finish();
    accumulator_.begin(3);
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

/// body ─► 3 ─► 3.0, both on this rank, then 4: all use the weight.
TEST_F(GradientAccumulatorTest, AddsACallerAfterWhatItCalled) {
  const auto callee = record(0, call_path({3, 0}));
  const auto later = record(0, call_path({4}));
  const auto body = record(0);
  const auto caller = record(0, call_path({3}));
  accumulator_.mark_forward_done(0);
  put_and_close(body, 1);
  put_and_close(caller, 1e30F);  // meets -1e30 + 1e30, which vanish
  put_and_close(callee, 1e30F);
  put_and_close(later, -1e30F);
  EXPECT_THAT(weight_.applied, ElementsAre(1e30F));
  EXPECT_EQ(weight_.grad(), (-1e30F + 1e30F) + 1e30F + 1);
}

/// The caller waits in the middle of its backward for the callee's, while both are open.
TEST_F(GradientAccumulatorTest, TakesTheCalleesGradientDuringTheCallersPass) {
  const auto caller = record_reaching({&weight_, &other_}, 0, call_path({0}));
  const auto callee = record_reaching({&weight_, &other_}, 0, call_path({0, 0}));
  accumulator_.mark_forward_done(0);
  put(caller, other_, 1);  // in the caller's graph the other stands behind the call
  EXPECT_THAT(other_.applied, IsEmpty());
  put(callee, other_, 2);
  EXPECT_THAT(other_.applied, ElementsAre(3));  // both have given all, closed or not
  put(callee, weight_, 5);
  accumulator_.close(callee);
  EXPECT_THAT(weight_.applied, IsEmpty());
  put_and_close(caller, 6);
  EXPECT_THAT(weight_.applied, ElementsAre(11));
}

TEST_F(GradientAccumulatorTest, RefusesTwoExecutionsAtOnePlace) {
  record(0, call_path({1}));
  const auto twin = record(0, call_path({1}));
  accumulator_.mark_forward_done(0);
  EXPECT_THROW(put(twin, 1), InternalError);
}

// ---- after the first backward ------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, AddsWhatFollowsTheFirstBackwardLast) {
  const auto rest = record_after(0, call_path({1}));
  put(rest, 8, true);
  const auto id = record(0, call_path({0}));
  accumulator_.mark_forward_done(0);
  put_and_close(id, 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1));
  EXPECT_EQ(accumulator_.waiting().bytes(), sizeof(float));
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 8));
}

TEST_F(GradientAccumulatorTest, AddsWhatFollowsTheFirstBackwardInOrder) {
  const auto second = record_after(1, call_path({7}));
  const auto first = record_after(0, call_path({7}));
  const auto last = record_after(0, call_path({9}));
  const auto middle = record_after(0, call_path({8}));
  put(second, 3);  // the execution says that it is after, if not the pass
  put(first, 1);
  put(last, 1e30F);
  put(middle, -1e30F);
  EXPECT_EQ(accumulator_.waiting().bytes(), 4 * sizeof(float));
  accumulator_.mark_microbatch_done(0);
  accumulator_.settle();
  EXPECT_EQ(accumulator_.waiting().bytes(), 2 * sizeof(float));  // microbatch 0 is one sum now
  EXPECT_THAT(weight_.applied, IsEmpty());
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 3));
}

/// The graph was kept: the execution stays open, gives again, and what it gives then follows the
/// first backward.
TEST_F(GradientAccumulatorTest, TakesASecondPassOverOneGraphLast) {
  const auto first = record(0, call_path({0}));
  const auto second = record(0, call_path({1}));
  const auto next = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(second, 10);
  put(first, 1);
  put_and_close(next, 100);
  EXPECT_THAT(weight_.applied, ElementsAre(11, 100));  // open, but both have given
  put(first, 2, true);
  put(second, 1e30F, true);
  put(second, -1e30F, true);
  accumulator_.close(first);
  accumulator_.close(second);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(11, 100, 2));
}

TEST_F(GradientAccumulatorTest, TakesWhatIsOpenedAfterTheForwardAsLate) {
  const auto id = record(0);
  accumulator_.mark_forward_done(0);
  const auto rest = accumulator_.open(0, call_path({5}), false);
  EXPECT_FALSE(accumulator_.after_first_backward(id));
  EXPECT_TRUE(accumulator_.after_first_backward(rest));
  put(rest, 8);
  put(id, 1);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(1, 8));
}

// ---- what hooks draw ---------------------------------------------------------------------------

/// Whoever completes a sum runs its hooks: a backward of the module, or of another, or the end of
/// the step.
TEST_F(GradientAccumulatorTest, HooksDrawTheSameNumbersWhoeverRunsThem) {
  const auto drawn_after = [this](std::initializer_list<std::size_t> arrivals) {
    std::vector<double> drawn;
    weight_.on_hook = [&] { drawn.push_back(at::rand({}, at::kDouble).item<double>()); };
    const std::array ids{record(0), record(1)};
    const auto later = record_after(0, call_path({3}));
    accumulator_.mark_forward_done(0);
    accumulator_.mark_forward_done(1);
    for (const auto microbatch : arrivals) put_and_close(ids.at(microbatch), 1);
    put(later, 1);
    accumulator_.finish();
    accumulator_.begin(3);
    return drawn;
  };
  at::manual_seed(5);
  const auto next_of_the_user = at::rand({3});
  at::manual_seed(5);
  const auto drawn = drawn_after({0, 1});
  EXPECT_EQ(drawn_after({1, 0}), drawn);
  EXPECT_TRUE(at::equal(at::rand({3}), next_of_the_user));
  EXPECT_EQ(drawn.size(), 3u);
  EXPECT_EQ(std::set<double>(drawn.begin(), drawn.end()).size(), 3u) << "none is drawn twice";
}

}  // namespace gradient_accumulator_test
}  // namespace smp::server::test
