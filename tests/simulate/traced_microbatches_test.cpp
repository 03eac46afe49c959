// Steps whose microbatches do not all go the same way: one goes as the first that was traced, the
// next as the second, and so on.
#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "simulate/device_profile.h"
#include "simulate/most_activations.h"
#include "simulate/random_timed_model.h"
#include "simulate/simulate_chain.h"
#include "simulate/step_program.h"

namespace smp::simulate {
namespace traced_microbatches_test {

using testing::DoubleNear;
using testing::ElementsAre;

/// Modules 1 and 2, of which every other microbatch calls the second.
TimedModel by_turns(double first, double second) {
  TimedModel model;
  model.call(-1, first, 10);
  TimedModel other;
  other.modules = 2;
  other.call(-1, second, 70);
  model.modules = other.modules;
  model.trace.others.push_back(other.trace);
  return model;
}

SimulatedStep step_of(const TimedModel& model, const std::vector<int>& stages, int microbatches,
                      int cap = 0) {
  auto machine = ideal_machine(3);
  return simulate_with(model, stages, machine, cap, {.microbatches = microbatches});
}

TEST(TracedMicrobatches, TakeTurns) {
  const auto model = by_turns(1e-3, 4e-3);
  const auto near = [](double ms) { return DoubleNear(ms * 1e-3, 1e-9); };
  EXPECT_THAT(step_of(model, {0, 1, 2}, 1).busy, ElementsAre(near(0), near(3), near(0)));
  EXPECT_THAT(step_of(model, {0, 1, 2}, 5).busy, ElementsAre(near(0), near(9), near(24)));
  EXPECT_THAT(step_of(model, {0, 1, 2}, 5).messages, ElementsAre(10, 6, 4));
  EXPECT_NEAR(step_of(model, {0, 0, 0}, 5).seconds, 33e-3, 1e-9) << "one stage: all of them";
  EXPECT_NEAR(step_of(model, {0, 1, 2}, 4).seconds, 24e-3, 1e-9) << "two stages at once";
}

TEST(TracedMicrobatches, OfALossElsewhereEachHaveTheirOwn) {
  auto model = by_turns(1e-3, 2e-3);
  model.trace.loss_call = 0;
  auto machine = ideal_machine(2);
  const auto program = compile(model.trace, {0, 1, 1}, machine);
  ASSERT_THAT(program.bodies, ElementsAre(0, 2));
  EXPECT_TRUE(program.tasks[1].gives_loss);
  EXPECT_FALSE(program.tasks[3].gives_loss);
  EXPECT_EQ(program.tasks[3].caller, 2);
}

TEST(TracedMicrobatches, MayAllBeOfTheKindThatTakesMost) {
  const auto model = by_turns(1e-3, 1e-3);
  const auto schedule = schedule::make_simple();
  EXPECT_THAT(most_activations(model.trace, {0, 1, 1}, ideal_machine(2),
                               {.microbatches = 4, .schedule = schedule.get()}),
              ElementsAre(0, 4 * 70));
}

/// Under 1F1B the last stage takes one microbatch at a time. The first never comes there: that is
/// known when its body has made its last call.
TEST(TracedMicrobatches, ThatDoNotComeToAStageHoldUpNobodyThere) {
  TimedModel model;
  model.call(-1, 10e-3);
  TimedModel other;
  other.call(-1, 0);  // module 1
  other.trace.calls.clear();
  other.call(-1, 1e-3);
  model.modules = other.modules;
  model.trace.others.push_back(other.trace);
  const auto schedule = schedule::make_schedule("1f1b", {.pp_size = 3, .microbatches = 2});
  const auto step = simulate(model.trace, {0, 1, 2}, ideal_machine(3),
                             {.microbatches = 2, .schedule = schedule.get(), .record = true});
  ASSERT_FALSE(step.timeline[2].spans.empty());
  EXPECT_EQ(step.timeline[2].spans[0].start, 10 * base::kMillisecond);
  EXPECT_NEAR(step.busy[2], 3e-3, 1e-9);
}

TEST(TracedMicrobatches, HaveOneSpeedADevice) {
  auto model = by_turns(1e-3, 1e-3);
  const auto note = [](Trace& trace, double forward) {
    std::vector<IntervalTimes> times(trace.num_intervals());
    times[Trace::index_of({0, false})] = {forward, 2 * forward, forward};
    trace.profiles.push_back(profile_of(trace, "other", times));
  };
  note(model.trace, 1e-3);            // as fast
  note(model.trace.others[0], 3e-3);  // three times as slow
  share_device_speeds(model.trace);
  EXPECT_DOUBLE_EQ(model.trace.profiles[0].speed, .5);
  EXPECT_DOUBLE_EQ(model.trace.others[0].profiles[0].speed, .5);
  auto machine = ideal_machine(3);
  machine.devices = {"traced", "other", "other"};
  take_device_speeds(machine, model.trace);
  const auto busy = simulate_with(model, {0, 1, 2}, machine, 0, {.microbatches = 2}).busy;
  EXPECT_NEAR(busy[1], 3e-3, 1e-8);
  EXPECT_NEAR(busy[2], 9e-3, 1e-8);
}

/// That all do the same, said once or several times, is the same step.
void check_equal_ones() {
  auto model = random_timed_model();
  fill_in_bytes(model.trace);
  Machine machine;
  machine.stages = *rc::gen::inRange(1, 5);
  machine.promised_outputs = *rc::gen::arbitrary<bool>();
  const auto stages = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(model.modules),
                                                            rc::gen::inRange(0, machine.stages));
  const int cap = *rc::gen::inRange(0, 4);
  const SimulationOptions options{.microbatches = *rc::gen::inRange(1, 7)};
  const auto alone = simulate_with(model, stages, machine, cap, options);
  auto said_again = model;
  said_again.trace.others.assign(*rc::gen::inRange<std::size_t>(1, 4), model.trace);
  const auto several = simulate_with(said_again, stages, machine, cap, options);
  RC_ASSERT(several.seconds == alone.seconds);
  RC_ASSERT(several.busy == alone.busy);
  RC_ASSERT(several.messages == alone.messages);
  RC_ASSERT(several.peak_activations == alone.peak_activations);
}

TEST(TracedMicrobatches, ThatAreEqualAreAsOne) { EXPECT_TRUE(rc::check(check_equal_ones)); }

/// Bytes of a step of models that have nothing in common but their modules.
void check_bound() {
  auto model = random_timed_model();
  const auto other = random_timed_model();
  model.modules = std::max(model.modules, other.modules);
  model.trace.others.push_back(other.trace);
  fill_in_bytes(model.trace);
  fill_in_bytes(model.trace.others[0]);
  Machine machine;
  machine.stages = *rc::gen::inRange(1, 5);
  const auto stages = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(model.modules),
                                                            rc::gen::inRange(0, machine.stages));
  const auto name = *rc::gen::element<std::string>("simple", "interleaved", "1f1b", "zero_bubble");
  SimulationOptions options{.microbatches = *rc::gen::inRange(1, 7), .jitter = 0.3};
  const auto schedule = schedule::make_schedule(
      name, {machine.stages, options.microbatches, *rc::gen::inRange(1, 5)});
  options.schedule = schedule.get();
  const auto step = simulate(model.trace, stages, machine, options);
  const auto most = most_activations(model.trace, stages, machine, options);
  for (int stage = 0; stage < machine.stages; ++stage) {
    RC_ASSERT(step.peak_activations[stage] <= most[stage]);
  }
}

TEST(TracedMicrobatches, NeverTakeMoreThanTheBound) { EXPECT_TRUE(rc::check(check_bound)); }

}  // namespace traced_microbatches_test
}  // namespace smp::simulate
