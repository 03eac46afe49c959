// The simulated step against closed formulas, cases computed by hand, and laws that hold for any
// model and placement.
#include "partition/simulator.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "partition/timed_model.h"

namespace smp::partition {
namespace {

using base::kMillisecond;
using testing::Each;
using testing::ElementsAre;
using testing::Le;

std::unique_ptr<schedule::Schedule> schedule_with(int cap) {
  return cap == 0 ? schedule::make_simple() : schedule::make_interleaved(cap);
}

/// One step under simple (cap 0) or interleaved.
SimulatedStep simulate_with(const TimedModel& model, const std::vector<int>& stages,
                            const Machine& machine, int cap, SimulationOptions options) {
  const auto schedule = schedule_with(cap);
  options.schedule = schedule.get();
  return simulate(model.tree, model.trace, stages, machine, options);
}

SimulatedStep simulate_chain(const std::vector<double>& seconds, int cap,
                             const SimulationOptions& options, double backward_ratio = 2) {
  auto model = traced_chain(seconds);
  model.trace.backward_ratio = backward_ratio;
  const auto machine = ideal_machine(static_cast<int>(seconds.size()));
  return simulate_with(model, stage_each(model), machine, cap, options);
}

double ideal_bubble(int stages, int microbatches) {
  return static_cast<double>(stages - 1) / (microbatches + stages - 1);
}

// ---- closed formulas --------------------------------------------------------------------------

TEST(Simulator, SimpleHasTheBubbleOfTheFormula) {
  for (const int stages : {1, 2, 3, 4, 8, 16}) {
    for (const int microbatches : {1, 2, 4, 7, 32}) {
      for (const double ratio : {1.0, 2.0, 2.7}) {
        const auto step = simulate_chain(std::vector<double>(stages, 0.3), 0,
                                         {.microbatches = microbatches}, ratio);
        EXPECT_NEAR(step.bubble, ideal_bubble(stages, microbatches), 1e-9)
            << stages << " stages, " << microbatches << " microbatches, ratio " << ratio;
        EXPECT_NEAR(step.seconds, (microbatches + stages - 1) * 0.3 * (1 + ratio), 1e-7);
      }
    }
  }
}

/// Answers pass through stage 0, which makes a round trip longer than in a chain of neighbours:
/// twice as many microbatches as stages keep everybody busy. Equal phases: nobody is in the middle
/// of a backward when an answer comes.
TEST(Simulator, InterleavedHasTheBubbleOfTheFormula) {
  for (const int stages : {1, 2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 4, 8, 32}) {
      const auto step = simulate_chain(std::vector<double>(stages, 0.3), 2 * stages,
                                       {.microbatches = microbatches}, 1);
      EXPECT_NEAR(step.bubble, ideal_bubble(stages, microbatches), 1e-9)
          << stages << " stages, " << microbatches << " microbatches";
    }
  }
}

TEST(Simulator, TheSlowestStageSetsThePace) {
  const auto step = simulate_chain({0.1, 0.4, 0.2}, 0, {.microbatches = 50, .forward_only = true});
  EXPECT_NEAR(step.seconds, 0.1 + 50 * 0.4 + 0.2, 1e-7);
}

TEST(Simulator, ForwardOnlyRunsNoBackwardAndKeepsNothing) {
  const auto step = simulate_chain({0.5, 0.5, 0.5}, 2, {.microbatches = 1, .forward_only = true});
  EXPECT_NEAR(step.seconds, 1.5, 1e-9);
  EXPECT_THAT(step.peak_activations, Each(0));
  EXPECT_THAT(step.messages, ElementsAre(2, 1, 1));
}

/// The formula of the module server's own tests: stage 0 asks each other stage once a microbatch,
/// forward and backward.
TEST(Simulator, AChainInRunsSendsTheMessagesOfTheFormula) {
  const auto model = traced_chain(std::vector<double>(12, 0.01));
  for (const int stages : {1, 2, 3, 4}) {
    std::vector<int> placed = {0};
    for (int i = 0; i < 12; ++i) placed.push_back(i * stages / 12);
    for (const int cap : {0, 2, 5}) {
      const auto step =
          simulate_with(model, placed, ideal_machine(stages), cap, {.microbatches = 5});
      EXPECT_EQ(step.messages[0], 2 * (stages - 1) * 5);
      for (int stage = 1; stage < stages; ++stage) EXPECT_EQ(step.messages[stage], 2 * 5);
    }
  }
}

TEST(Simulator, OnlyASequentialJoinsNeighboursInOneRequest) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  for (int i = 0; i < 3; ++i) model.call(0, root, 0.01);
  const auto step = simulate_with(model, {0, 1, 1, 1}, ideal_machine(2), 0, {});
  EXPECT_THAT(step.messages, ElementsAre(6, 6));
}

TEST(Simulator, RequestsComeFromWhereTheCallerRuns) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int encoder = model.call(0, root, 0.01);
  model.call(model.trace.calls[encoder].module, encoder, 0.01);
  const auto step = simulate_with(model, {0, 1, 2}, ideal_machine(3), 0, {});
  EXPECT_THAT(step.messages, ElementsAre(2, 4, 2));
}

// ---- by hand ----------------------------------------------------------------------------------

/// Each message: 0.5 ms of the sender's thread, 1 ms of travel, 0.5 ms of the receiver's thread.
/// 10 compute, .5 1 .5 request, 20 compute, .5 1 .5 answer; and backward: .5 1 .5, 40, .5 1 .5, 20.
TEST(Simulator, AddsUpTheCostOfMessages) {
  const auto model = traced_chain({0.010, 0.020});
  auto machine = ideal_machine(2);
  machine.latency = 0.001;
  machine.handling = 0.0005;
  const auto step = simulate_with(model, stage_each(model), machine, 0, {});
  EXPECT_NEAR(step.seconds, 0.098, 1e-9);
  EXPECT_THAT(step.busy,
              ElementsAre(testing::DoubleNear(0.030, 1e-9), testing::DoubleNear(0.060, 1e-9)));
}

/// Forward 8 MB there and 2 MB back at 1 GB/s; backward the gradients of the same.
TEST(Simulator, BytesTakeTime) {
  auto model = traced_chain({0.010, 0.020});
  model.trace.calls[2].input_bytes = 8'000'000;
  model.trace.calls[2].output_bytes = 2'000'000;
  auto machine = ideal_machine(2);
  machine.bytes_per_second = 1e9;
  const auto step = simulate_with(model, stage_each(model), machine, 0, {});
  EXPECT_NEAR(step.seconds, 0.090 + 2 * 0.010, 1e-9);
}

/// Stage 1 has microbatch 0 ready for stage 2 at 14 ms, while stage 0 computes microbatch 1 from 10
/// to 20 ms.
TEST(Simulator, AnAnswerIsPassedOnWhenTheCallersThreadIsFree) {
  const auto step = simulate_chain({0.010, 0.004, 0.004}, 0,
                                   {.microbatches = 2, .forward_only = true, .record = true});
  EXPECT_EQ(step.timeline[2].spans.at(0).start, 20 * kMillisecond);
}

TEST(Simulator, ALongStretchIsInterruptedBetweenTwoCalls) {
  const auto model = traced_chain({0.005, 0.005, 0.004, 0.004});
  const auto step = simulate_with(model, {0, 0, 0, 1, 2}, ideal_machine(3), 0,
                                  {.microbatches = 2, .forward_only = true, .record = true});
  EXPECT_EQ(step.timeline[2].spans.at(0).start, 15 * kMillisecond);
}

/// The answer comes 0.1 ms after stage 0 could have begun with microbatch 1, which waits for 1/50
/// of 10 ms.
TEST(Simulator, APatientThreadWaitsForAnAnswerThatIsDue) {
  const auto model = traced_chain({0.010, 0.010, 0.010});
  auto machine = ideal_machine(3);
  machine.latency = 0.00005;
  const SimulationOptions options{.microbatches = 3, .forward_only = true, .record = true};
  const auto hasty = simulate_with(model, stage_each(model), machine, 0, options);
  machine.patient = true;
  const auto patient = simulate_with(model, stage_each(model), machine, 0, options);
  EXPECT_GT(hasty.timeline[2].spans.at(0).start, 29 * kMillisecond);
  EXPECT_LT(patient.timeline[2].spans.at(0).start, 21 * kMillisecond);
}

/// Interleaved: stage 1 sends B0 back at 4 ms, while stage 0 computes F3 until 4 ms and has F4
/// left.
TEST(Simulator, ABackwardThatIsReadyGoesBeforeTheNextForward) {
  const auto step = simulate_chain({0.001, 0.001}, 8, {.microbatches = 8, .record = true});
  const auto& spans = step.timeline[0].spans;
  const auto backward = std::find_if(spans.begin(), spans.end(), [](const base::Span& span) {
    return span.phase == base::Phase::kBackward;
  });
  EXPECT_EQ(backward->microbatch, 0);
  EXPECT_LT(backward - spans.begin(), 8);
}

// ---- cores that stages share ------------------------------------------------------------------

SimulatedStep simulate_crowded(const TimedModel& model, const std::vector<int>& stages,
                               Machine machine, double cores, SimulationOptions options) {
  std::vector<int> all(machine.stages);
  std::iota(all.begin(), all.end(), 0);
  machine.crowded = {{all, cores}};
  return simulate_with(model, stages, machine, 0, options);
}

TEST(Simulator, StagesOnOneCoreTakeAsLongAsOneStage) {
  const auto model = traced_chain({0.1, 0.3, 0.2});
  for (const int microbatches : {1, 4, 9}) {
    const auto step = simulate_crowded(model, stage_each(model), ideal_machine(3), 1,
                                       {.microbatches = microbatches});
    EXPECT_NEAR(step.seconds, microbatches * 0.6 * 3, 1e-7);
    EXPECT_NEAR(step.busy[1], microbatches * 0.3 * 3, 1e-9) << "work, not waiting for a core";
  }
}

TEST(Simulator, CoresAreNotIdleWhereStagesCouldUseThem) {
  const auto model = traced_chain(std::vector<double>(8, 0.1));
  const auto step =
      simulate_crowded(model, stage_each(model), ideal_machine(8), 2, {.microbatches = 64});
  const double work = 64 * 8 * 0.1 * 3;
  EXPECT_GE(step.seconds, work / 2 - 1e-6);
  EXPECT_LT(step.seconds, 1.02 * work / 2);
}

TEST(Simulator, ACoreForEachIsAsIfNoneWereShared) {
  const auto model = traced_chain({0.1, 0.3, 0.2});
  const SimulationOptions options{.microbatches = 5, .jitter = 0.2, .seed = 3, .record = true};
  const auto alone = simulate_with(model, stage_each(model), Machine{.stages = 3}, 0, options);
  const auto shared = simulate_crowded(model, stage_each(model), Machine{.stages = 3}, 3, options);
  EXPECT_NEAR(shared.seconds, alone.seconds, 1e-7);
  EXPECT_EQ(shared.peak_activations, alone.peak_activations);
  ASSERT_EQ(shared.timeline[1].spans.size(), alone.timeline[1].spans.size());
  EXPECT_EQ(shared.timeline[1].busy_cpu(), alone.timeline[1].busy_cpu());
  EXPECT_TRUE(shared.timeline[1].oversubscribed);
}

// ---- memory and the cap -----------------------------------------------------------------------

TEST(Simulator, SimpleKeepsTheActivationsOfAllMicrobatches) {
  const auto step = simulate_chain({0.1, 0.1, 0.1}, 0, {.microbatches = 6});
  EXPECT_THAT(step.peak_activations, ElementsAre(6, 6, 6));
}

TEST(Simulator, InterleavedKeepsThoseOfItsCap) {
  for (int cap = 1; cap <= 4; ++cap) {
    const auto step = simulate_chain({0.1, 0.1, 0.1}, cap, {.microbatches = 12});
    EXPECT_EQ(step.peak_activations[0], cap);
    EXPECT_THAT(step.peak_activations, Each(Le(cap)));
  }
}

TEST(Simulator, NoOrderTakesMoreThanTheMost) {
  auto model = traced_chain({0.1, 0.1, 0.1});
  model.trace.calls[2].after.gradient_bytes = 50;
  model.trace.calls[3].waiting_bytes = 7;  // waits on stage 0
  const auto most = [&](int in_flight) {
    const auto schedule = schedule::make_simple();
    return most_activations(model.tree, model.trace, {0, 0, 1, 2}, ideal_machine(3),
                            {.schedule = schedule.get()}, in_flight);
  };
  EXPECT_THAT(most(1), ElementsAre(1 + 7, 1 + 50, 1));
  EXPECT_THAT(most(4), ElementsAre(4 * (1 + 7), 4 + 50, 4));
}

TEST(Simulator, GradientsComeOnTopOfActivations) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.calls[2].after.gradient_bytes = 50;
  const auto schedule = schedule::make_simple();
  SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  const auto step = simulate(model.tree, model.trace, {0, 0, 1}, ideal_machine(2), options);
  EXPECT_THAT(step.peak_activations, ElementsAre(6, 6 + 50));
  options.forward_only = true;
  const auto forward = simulate(model.tree, model.trace, {0, 0, 1}, ideal_machine(2), options);
  EXPECT_THAT(forward.peak_activations, Each(0));
}

TEST(Simulator, ACallerHoldsWhatItLentAndWhatWaitsUntilTheAnswer) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.calls[2].lent_bytes = 10;
  const auto schedule = schedule::make_simple();
  const SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  const auto peak = [&] {
    return simulate(model.tree, model.trace, {0, 0, 1}, ideal_machine(2), options).peak_activations;
  };
  EXPECT_EQ(peak()[0], 6 + 2 * 10);  // an answer comes as the next request goes
  model.trace.calls[2].waiting_bytes = 1000;
  EXPECT_EQ(peak()[0], 6 + 6 * 1000);  // all begin backward at once
}

int most_in_flight(const SimulatedStep& step) {
  std::map<int, base::Span> lives;
  for (const auto& span : step.timeline[0].spans) {
    const auto [life, is_first] = lives.try_emplace(span.microbatch, span);
    life->second.end = span.end;
  }
  int most = 0;
  for (const auto& [microbatch, life] : lives) {
    most = std::max(
        most, static_cast<int>(std::count_if(lives.begin(), lives.end(), [&](const auto& other) {
          return other.second.start <= life.start && life.start < other.second.end;
        })));
  }
  return most;
}

TEST(Simulator, NeverHasMoreMicrobatchesInFlightThanTheCap) {
  for (int cap = 1; cap <= 5; ++cap) {
    const auto step = simulate_chain({0.1, 0.1, 0.1, 0.1}, cap,
                                     {.microbatches = 12, .jitter = 0.2, .record = true});
    EXPECT_EQ(most_in_flight(step), cap);
  }
}

// ---- jitter -----------------------------------------------------------------------------------

TEST(Simulator, TheSeedDecidesTheJitter) {
  const std::vector<double> seconds(4, 0.1);
  const auto run = [&](double jitter, std::uint64_t seed) {
    return simulate_chain(seconds, 4, {.microbatches = 8, .jitter = jitter, .seed = seed}).seconds;
  };
  EXPECT_EQ(run(0.1, 1), run(0.1, 1));
  EXPECT_NE(run(0.1, 1), run(0.1, 2));
  EXPECT_EQ(run(0, 1), run(0, 2));
}

TEST(Simulator, JitterHasTheDeviationThatWasAskedFor) {
  const int count = 2000;
  const auto step = simulate_chain(
      {1.0}, 0, {.microbatches = count, .forward_only = true, .jitter = 0.1, .record = true});
  EXPECT_NEAR(step.busy[0] / count, 1, 0.01);
  double squares = 0;
  for (const auto& span : step.timeline[0].spans) {
    const double own = static_cast<double>(span.end - span.start) / base::kSecond;
    squares += (own - 1) * (own - 1);
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.1, 0.005);
}

// ---- laws -------------------------------------------------------------------------------------

/// A random model: any call may call further modules, used modules are called again.
TimedModel random_model() {
  TimedModel model;
  const int calls = *rc::gen::inRange(1, 30);
  for (int i = 0; i < calls; ++i) {
    // A caller that is still running: the last call or one of its callers.
    int caller = i - 1;
    while (caller >= 0 && *rc::gen::arbitrary<bool>()) caller = model.trace.calls[caller].caller;
    const double seconds = *rc::gen::inRange(0, 3000) * 1e-6;
    const bool again = *rc::gen::inRange(0, 4) == 0;
    const int modules = static_cast<int>(model.tree.nodes.size());
    if (again) {
      model.call_again(*rc::gen::inRange(0, modules), caller, seconds);
    } else {
      model.call(caller < 0 ? 0 : model.trace.calls[caller].module, caller, seconds);
    }
    model.trace.calls.back().before.seconds = *rc::gen::inRange(0, 500) * 1e-6;
  }
  for (auto& node : model.tree.nodes) node.sequential = *rc::gen::arbitrary<bool>();
  model.trace.body_after.seconds = 1e-4;
  return model;
}

double seconds_of(const Trace& trace) {
  return std::accumulate(trace.calls.begin(), trace.calls.end(), trace.body_after.seconds,
                         [](double sum, const TracedCall& call) {
                           return sum + call.before.seconds + call.after.seconds;
                         });
}

TEST(Simulator, NoWorkIsLostWhateverTheModelAndThePlacement) {
  const bool holds = rc::check([] {
    const auto model = random_model();
    Machine machine;
    machine.stages = *rc::gen::inRange(1, 5);
    const auto stages = *rc::gen::container<std::vector<int>>(model.tree.nodes.size(),
                                                              rc::gen::inRange(0, machine.stages));
    const int microbatches = *rc::gen::inRange(1, 6);
    const auto step = simulate_with(model, stages, machine, *rc::gen::inRange(0, 4),
                                    {.microbatches = microbatches, .record = true});
    const double busy = std::accumulate(step.busy.begin(), step.busy.end(), 0.0);
    RC_ASSERT(std::abs(busy - 3 * microbatches * seconds_of(model.trace)) < 1e-5);
    RC_ASSERT(step.seconds + 1e-6 >= 3 * seconds_of(model.trace));
    for (int stage = 0; stage < machine.stages; ++stage) {
      const auto& trace = step.timeline[stage];
      RC_ASSERT(std::abs(static_cast<double>(trace.busy_wall()) / base::kSecond -
                         step.busy[stage]) < 1e-9);
      for (std::size_t i = 1; i < trace.spans.size(); ++i) {
        RC_ASSERT(trace.spans[i - 1].end <= trace.spans[i].start);
      }
    }
  });
  EXPECT_TRUE(holds);
}

TEST(Simulator, AFasterStageIsBusyForLess) {
  const auto model = traced_chain({0.1, 0.1});
  auto machine = ideal_machine(2);
  machine.speeds = {1, 4};
  const auto step = simulate_with(model, stage_each(model), machine, 0, {.microbatches = 3});
  EXPECT_NEAR(step.busy[0], 0.9, 1e-9);
  EXPECT_NEAR(step.busy[1], 0.9 / 4, 1e-9);
}

}  // namespace
}  // namespace smp::partition
