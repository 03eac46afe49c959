// partition/simulated/schedule_comparison_test.cpp: a step goes through its file unchanged, and a
// plan is compared under several schedules.
#include "partition/simulated/schedule_comparison.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "partition/plan/plan_example.h"
#include "partition/search/partitioner.h"
#include "simulate/simulator.h"
#include "smp/error.h"

namespace smp::partitioning {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A step in which nothing is left at its default.
PlannedStep odd_step() {
  PlannedStep step;
  step.pipeline = "1f1b";
  step.microbatches = 6;
  step.active_microbatches = 5;
  step.machine.stages = 2;
  step.machine.speeds = {1, 1.5};
  step.machine.oversubscribed = {{{0, 1}, 1.5}};
  step.machine.latency = 3.5e-5;
  step.machine.bytes_per_second = 1e9 / 3;
  step.machine.handling = 7e-6;
  step.machine.patient = false;
  step.machine.promised_outputs = false;
  step.trace.backward_ratio = 1.75;
  step.trace.weight_share = 1.0 / 3;
  step.trace.body_after = {1e-4, 10, 20};
  simulate::TracedCall call;
  call.before = {1e-3, 100, 200};
  call.after = {2e-3 / 3, 300, 400};
  call.sequential = true;
  step.trace.calls = {call, call};
  auto& second = step.trace.calls[1];
  second = {1, 0, {1e-5, 1, 2}, {3e-3, 1'000'000, 5}, 11, 12, 13, 14, false};
  step.trace.loss_call = 1;
  step.trace.shared = {{70, {{0, true}, {1, false}, {-1, false}}}};
  auto other = step.trace;
  other.calls.resize(1);
  other.loss_call = -1;
  other.shared.clear();
  other.body_after.seconds = 2e-4;
  step.trace.others = {other, other};
  step.trace.others[1].calls[0].after.seconds *= 2;
  return step;
}

simulate::SimulatedStep simulated(const PlannedStep& step) {
  const auto schedule = schedule::make_interleaved(3);
  return simulate::simulate(step.trace, {0, 1}, step.machine,
                            {.microbatches = 6, .schedule = schedule.get(), .jitter = 0.1});
}

/// A part of a backward may be all of it, and was added up otherwise.
TEST(PlannedStep, IsReadWhereSumsDifferByTheirRounding) {
  auto step = odd_step();
  auto& interval = step.trace.calls[0].before;
  interval.backward_seconds = 0.1;
  interval.weight_seconds = 0.1 + 2e-17;
  const auto read = PlannedStep::from_json(step.to_json(), "step").trace.calls[0].before;
  EXPECT_EQ(read.weight_seconds, read.backward_seconds);
  interval.weight_seconds = 0.11;
  EXPECT_THROW(PlannedStep::from_json(step.to_json(), "step"), UsageError);
}

/// Or so many would not fit in memory.
TEST(PlannedStep, HoldsEachTracedMicrobatchOnce) {
  auto step = odd_step();
  step.trace.others.assign(40, step.trace.others[0]);
  const auto read = PlannedStep::from_json(step.to_json(), "step");
  ASSERT_EQ(read.trace.others.size(), 40u);
  for (const auto& other : read.trace.others) EXPECT_TRUE(other.others.empty());
}

TEST(PlannedStep, ComesBackFromItsFile) {
  const auto step = odd_step();
  const auto again = PlannedStep::from_json(step.to_json(), "step");
  EXPECT_EQ(again.to_json(), step.to_json());
  EXPECT_EQ(again.pipeline, "1f1b");
  EXPECT_EQ(again.microbatches, 6);
  EXPECT_EQ(again.active_microbatches, 5);
  EXPECT_EQ(again.trace.loss_call, 1);
  const auto first = simulated(step), second = simulated(again);
  EXPECT_EQ(first.seconds, second.seconds);
  EXPECT_EQ(first.busy, second.busy);
  EXPECT_EQ(first.peak_activations, second.peak_activations);
  EXPECT_EQ(first.messages, second.messages);
}

/// Those that matter where calls are computed again.
TEST(PlannedStep, KeepsUsesOfTensors) {
  using enum simulate::TensorUseKind;
  auto step = odd_step();
  step.trace.uses = {{0, 70, kKept, {-1, false}}, {0, 70, kKept, {0, true}},
                     {0, 70, kResult, {1}},       {0, 70, kArgument, {1}},
                     {1, 80, kKept, {1, false}},  {1, 80, kArgument, {0}}};
  EXPECT_TRUE(PlannedStep::from_json(step.to_json(), "step").trace.uses.empty());
  step.trace.recomputed = {{1}};
  const std::vector<simulate::TensorUse> kept = {
      {0, 70, kKept, {-1, false}}, {0, 70, kKept, {0, true}}, {0, 70, kArgument, {1}}};
  const auto again = PlannedStep::from_json(step.to_json(), "step");
  EXPECT_EQ(again.trace.uses, kept);
  EXPECT_EQ(again.to_json(), step.to_json());
  auto text = again.to_json();
  text.replace(text.find("\"uses\": [[70,0,-1"), 18, "\"uses\": [[70,3,-1");
  EXPECT_THROW(PlannedStep::from_json(text, "step"), UsageError);
}

/// Everything that a step on one kind of device in one place has not.
PlannedStep far_step() {
  auto step = odd_step();
  auto& trace = step.trace;
  trace.calls[0].after.backward_seconds = 1e-3;
  trace.calls[0].after.weight_seconds = 1e-4;
  trace.body_after.backward_seconds = 0;
  trace.device = "h100";
  std::vector<simulate::IntervalTimes> times(trace.num_intervals(), {1e-4, 2e-4, 1e-4 / 3});
  trace.profiles = {{"a100", 0.5, times}};
  trace.others.clear();
  trace.others = {trace, trace};
  step.machine.devices = {"h100", "a100"};
  step.machine.places = {{0, 0, 0}, {1, 1, 2}};
  step.machine.across_sockets = {1e-5, 2e9};
  step.machine.network = {3e-5, 1e9 / 7};
  return step;
}

TEST(PlannedStep, DevicesAndPlacesComeBackToo) {
  const auto step = far_step();
  const auto again = PlannedStep::from_json(step.to_json(), "step");
  EXPECT_EQ(again.to_json(), step.to_json());
  EXPECT_EQ(again.machine.devices, step.machine.devices);
  EXPECT_EQ(again.machine.places, step.machine.places);
  const auto first = simulated(step), second = simulated(again);
  EXPECT_EQ(first.seconds, second.seconds);
  EXPECT_EQ(first.busy, second.busy);
  for (const auto& forget : std::vector<std::function<void(PlannedStep&)>>{
           [](auto& other) { other.trace.calls[0].after.backward_seconds = -1; },
           [](auto& other) { other.trace.profiles.clear(); },
           [](auto& other) { other.machine.places.clear(); },
           [](auto& other) { other.machine.devices.clear(); }}) {
    auto other = far_step();
    forget(other);
    EXPECT_NE(simulated(other).seconds, first.seconds) << "it does not count: the test is idle";
  }
}

/// far_step() with all stages in one node, and links for each pair.
PlannedStep step_of_pairs() {
  auto step = far_step();
  step.machine.places.clear();
  step.machine.pairs = {{0, 1e9}, {1e-4, 1e8 / 3}, {1e-4, 1e8 / 3}, {0, 1e9}};
  return step;
}

TEST(PlannedStep, LinksOfPairsComeBackToo) {
  const auto step = step_of_pairs();
  const auto again = PlannedStep::from_json(step.to_json(), "step");
  EXPECT_EQ(again.to_json(), step.to_json());
  EXPECT_EQ(again.machine.pairs, step.machine.pairs);
  EXPECT_EQ(simulated(again).seconds, simulated(step).seconds);
  auto other = step;
  other.machine.pairs.clear();
  EXPECT_NE(simulated(other).seconds, simulated(step).seconds);
}

TEST(PlannedStep, SaysWhatIsWrongWithLinksOfPairs) {
  const auto error_with = [](const std::string& from, const std::string& to) -> std::string {
    auto text = step_of_pairs().to_json();
    EXPECT_NE(text.find(from), std::string::npos) << text;
    text.replace(text.find(from), from.size(), to);
    try {
      (void)PlannedStep::from_json(text, "own.json");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_with("[0,1,1,0]", "[0,1,1]"), HasSubstr("3 pairs, expected 4 of 2 stages"));
  EXPECT_THAT(error_with("[0,1,1,0]", "[0,1,2,0]"), HasSubstr("has no link 2"));
  EXPECT_THAT(error_with("[0,1,1,0]", "[0,-1,1,0]"), HasSubstr("has no link -1"));
  EXPECT_THAT(error_with("\"latency\":0.0001", "\"latency\":-1"), HasSubstr("out of range"));
}

TEST(PlannedStep, RemembersThatStateIsKeptInOrder) {
  auto step = odd_step();
  step.trace.state.push_back({1, simulate::StateKind::kOrdered, "counts"});
  const auto again = PlannedStep::from_json(step.to_json(), "step");
  ASSERT_EQ(again.trace.state.size(), 1u);
  EXPECT_EQ(again.trace.state[0].kind, simulate::StateKind::kOrdered);
  EXPECT_THAT(PlannedStep::from_json(odd_step().to_json(), "step").trace.state, IsEmpty());
}

TEST(PlannedStep, SaysWhatIsWrongWithAFile) {
  const auto error_with = [](const std::string& from, const std::string& to) -> std::string {
    auto text = odd_step().to_json();
    text.replace(text.find(from), from.size(), to);
    try {
      (void)PlannedStep::from_json(text, "own.json");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_with("\"weight_share\"", "\"weight_share\""), "no error");
  EXPECT_THAT(error_with("\"weight_share\"", "\"share\""),
              HasSubstr("own.json: \"weight_share\" is missing"));
  EXPECT_THAT(error_with("[1,0,", "[1,"), HasSubstr("a call must be 13 numbers, found [1,"));
  EXPECT_THAT(error_with("[1,0,", "[1,1,"), HasSubstr("call 1 is of module 1 by call 1"));
  EXPECT_THAT(error_with("[1,0,", "[-1,0,"), HasSubstr("call 1 is of module -1"));
  EXPECT_THAT(error_with("\"microbatches\": 6", "\"microbatches\": 0"),
              HasSubstr("a step of 0 microbatches"));
  EXPECT_THAT(error_with("[70,0,1,", "[70,5,1,"), HasSubstr("there is no call 5"));
  EXPECT_THAT(error_with("\"loss_call\": 1", "\"loss_call\": 2"),
              HasSubstr("\"loss_call\" is 2, and there are 2 calls"));
  EXPECT_EQ(error_with(", \"loss_call\": 1", ""), "no error") << "older plans do not have it";
  EXPECT_THAT(error_with("[70,0,1,", "[70,1,"), HasSubstr("a shared tensor must be"));
}

TEST(PlannedStep, SaysWhatIsWrongWithDevicesAndPlaces) {
  const auto error_of = [](const std::function<void(PlannedStep&)>& break_it) -> std::string {
    auto step = far_step();
    break_it(step);
    try {
      (void)PlannedStep::from_json(step.to_json(), "own.json");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of([](auto&) {}), "no error");
  EXPECT_THAT(error_of([](auto& step) { step.machine.devices.pop_back(); }),
              HasSubstr("\"direct_links\" must be of 2 stages"));
  EXPECT_THAT(error_of([](auto& step) { step.machine.places[0].node = -1; }),
              HasSubstr("out of range"));
  EXPECT_THAT(error_of([](auto& step) { step.machine.network.bytes_per_second = 0; }),
              HasSubstr("out of range"));
  EXPECT_THAT(error_of([](auto& step) { step.trace.profiles[0].times.pop_back(); }),
              HasSubstr("5 times on a device for 6 intervals"));
  EXPECT_THAT(error_of([](auto& step) { step.trace.profiles[0].times[0].weights = 1; }),
              HasSubstr("gradients of weights take longer"));
  EXPECT_THAT(error_of([](auto& step) { step.trace.calls[0].after.weight_seconds = 1; }),
              HasSubstr("gradients of weights take longer"));
}

TEST(ScheduleComparison, ReadsAListOfNames) {
  EXPECT_THAT(schedules_of("simple,file:a.txt,"), ElementsAre("simple", "file:a.txt"));
  EXPECT_THAT(schedules_of("all"), ElementsAre("simple", "interleaved", "1f1b", "zero_bubble"));
  EXPECT_THAT(schedules_of(""), IsEmpty());
}

TEST(ScheduleComparison, TheSchedulesOfThePlanTakeAsLongAsThePlanSays) {
  const ModuleTree tree = encoder_decoder(4, 4000, 1000, true);
  for (const char* pipeline : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    PartitionOptions options;
    options.pp_size = 3;
    options.microbatches = 8;
    options.active_microbatches = 4;
    options.pipeline = pipeline;
    const auto plan = make_plan(tree, options);
    const auto step =
        PlannedStep::from_json(planned_step(tree, options).to_json(), "trace-simulated.json");
    const auto outcome = compare_schedules(plan, step, {pipeline}, 0).at(0);
    EXPECT_EQ(outcome.schedule, pipeline);
    EXPECT_NEAR(outcome.step_seconds, plan.summary()->chosen.step_seconds, 1e-9) << pipeline;
    EXPECT_NEAR(outcome.bubble, plan.summary()->chosen.bubble, 1e-9) << pipeline;
    for (std::size_t stage = 0; stage < 3; ++stage) {
      // A plan also knows the gradients that wait for those of earlier microbatches.
      EXPECT_LE(outcome.activations.at(stage), plan.summary()->stages[stage].most_activations)
          << pipeline << ", stage " << stage;
    }
  }
}

TEST(ScheduleComparison, RefusesAPlanThatIsNotOfTheStep) {
  const auto error_of = [](const PartitionPlan& plan) -> std::string {
    try {
      (void)compare_schedules(plan, odd_step(), {"simple"}, 0);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto plan_of = [](int stages, const std::vector<std::string>& paths) {
    std::vector<PartitionPlan::Row> rows;
    for (const auto& path : paths) {
      auto& row = rows.emplace_back();
      row.path = path;
      row.pp_rank = path.empty() ? 0 : 1;
    }
    return PartitionPlan(stages, std::move(rows));
  };
  EXPECT_EQ(error_of(plan_of(2, {"", "a"})), "no error");
  EXPECT_THAT(error_of(plan_of(3, {"", "a"})),
              HasSubstr("the plan is for 3 stages, and its step for 2"));
  EXPECT_THAT(error_of(plan_of(2, {""})),
              HasSubstr("the plan has 1 modules, and its step calls module 1"));
}

TEST(ScheduleComparison, TellsMultiplesWhereSecondsMeanNothing) {
  const std::vector<ScheduleOutcome> outcomes = {{"simple", 0.5, 0.2, {1}},
                                                 {"1f1b", 0.25, 0.1, {1}}};
  PlannedStep step;
  EXPECT_THAT(comparison_table(outcomes, step, 4), HasSubstr("500 ms"));
  const auto text = comparison_table(outcomes, step, 4, false);
  EXPECT_THAT(text, testing::AllOf(HasSubstr("2.00"), HasSubstr("1.00"),
                                   testing::Not(HasSubstr(" ms")), HasSubstr("multiples")));
}

}  // namespace
}  // namespace smp::partitioning
