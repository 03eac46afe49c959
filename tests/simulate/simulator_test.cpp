// The simulated step against closed formulas and cases computed by hand.
#include "simulate/simulator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using base::kMillisecond;
using testing::Each;
using testing::ElementsAre;

double ideal_bubble(int stages, int microbatches) {
  return static_cast<double>(stages - 1) / (microbatches + stages - 1);
}

// ---- closed formulas ---------------------------------------------------------------------------

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

/// Equal phases: stage 0, where the body stands between the last forward and the first backward, is
/// never in the middle of a computation when a result comes.
TEST(Simulator, InterleavedHasTheBubbleOfTheFormula) {
  for (const int stages : {1, 2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 4, 8, 32}) {
      const auto step = simulate_chain(std::vector<double>(stages, 0.3), stages,
                                       {.microbatches = microbatches}, 1);
      EXPECT_NEAR(step.bubble, ideal_bubble(stages, microbatches), 1e-9)
          << stages << " stages, " << microbatches << " microbatches";
    }
  }
}

/// Forwards 0-1 and 1-2, then 1-2 and 2-3; backwards 4-5 and 5-6 after 3-4 and 4-5.
TEST(Simulator, TellsWhenStagesEndAndTheirLastBackwardBegins) {
  const auto step = simulate_chain({1, 1}, 0, {.microbatches = 2}, 1);
  ASSERT_EQ(step.ends.size(), 2u);
  EXPECT_NEAR(step.ends[0], 6, 1e-7);
  EXPECT_NEAR(step.ends[1], 5, 1e-7);
  EXPECT_NEAR(step.last_backwards[0], 5, 1e-7);
  EXPECT_NEAR(step.last_backwards[1], 4, 1e-7);
  const auto forward = simulate_chain({1, 1}, 0, {.microbatches = 2, .forward_only = true});
  EXPECT_NEAR(forward.ends[1], 3, 1e-7);
  EXPECT_EQ(forward.last_backwards[1], 0);
}

/// Stage 0 has the first and the last of three modules. Its backward of microbatch 1 begins with
/// the last one, 5-6, and goes on with the first, 7-8.
TEST(Simulator, ABackwardInPiecesBeginsWithTheFirst) {
  auto model = traced_chain({1, 1, 1});
  model.trace.backward_ratio = 1;
  const auto step = simulate_with(model, {0, 0, 1, 0}, ideal_machine(2), 0, {.microbatches = 2});
  EXPECT_NEAR(step.seconds, 8, 1e-7);
  EXPECT_NEAR(step.last_backwards[0], 5, 1e-7);
  EXPECT_NEAR(step.ends[0], 8, 1e-7);
}

TEST(Simulator, TheSlowestStageSetsThePace) {
  const auto step = simulate_chain({0.1, 0.4, 0.2}, 0, {.microbatches = 50, .forward_only = true});
  EXPECT_NEAR(step.seconds, 0.1 + 50 * 0.4 + 0.2, 1e-7);
}

TEST(Simulator, ForwardOnlyRunsNoBackwardAndKeepsNothing) {
  const auto step = simulate_chain({0.5, 0.5, 0.5}, 2, {.microbatches = 1, .forward_only = true});
  EXPECT_NEAR(step.seconds, 1.5, 1e-9);
  EXPECT_THAT(step.peak_activations, Each(0));
  EXPECT_THAT(step.messages, ElementsAre(1, 1, 1));
}

/// The formula of the module server's own tests: stage 0 asks each other stage once a microbatch,
/// forward and backward.
TEST(Simulator, AChainThatIsRelayedSendsTheMessagesOfTheFormula) {
  const auto model = traced_chain(std::vector<double>(12, 0.01));
  for (const int stages : {1, 2, 3, 4}) {
    std::vector<int> placed = {0};
    for (int i = 0; i < 12; ++i) placed.push_back(i * stages / 12);
    for (const int cap : {0, 2, 5}) {
      const auto step =
          simulate_with(model, placed, relaying_machine(stages), cap, {.microbatches = 5});
      EXPECT_EQ(step.messages[0], 2 * (stages - 1) * 5);
      for (int stage = 1; stage < stages; ++stage) EXPECT_EQ(step.messages[stage], 2 * 5);
    }
  }
}

TEST(Simulator, OnlyASequentialJoinsNeighboursInOneRequest) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  for (int i = 0; i < 3; ++i) model.call(root, 0.01);
  const auto step = simulate_with(model, {0, 1, 1, 1}, relaying_machine(2), 0, {});
  EXPECT_THAT(step.messages, ElementsAre(6, 6));
}

TEST(Simulator, RequestsComeFromWhereTheCallerRuns) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int encoder = model.call(root, 0.01);
  model.call(encoder, 0.01);
  const auto step = simulate_with(model, {0, 1, 2}, ideal_machine(3), 0, {});
  EXPECT_THAT(step.messages, ElementsAre(2, 4, 2));
}

// ---- by hand -----------------------------------------------------------------------------------

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
TEST(Simulator, AnAnswerIsRelayedWhenTheCallersThreadIsFree) {
  const auto model = traced_chain({0.010, 0.004, 0.004});
  const auto step = simulate_with(model, stage_each(model), relaying_machine(3), 0,
                                  {.microbatches = 2, .forward_only = true, .record = true});
  EXPECT_EQ(step.timeline[2].spans.at(0).start, 20 * kMillisecond);
}

TEST(Simulator, ALongComputationIsInterruptedBetweenTwoCalls) {
  const auto model = traced_chain({0.005, 0.005, 0.004, 0.004});
  const auto step = simulate_with(model, {0, 0, 0, 1, 2}, relaying_machine(3), 0,
                                  {.microbatches = 2, .forward_only = true, .record = true});
  EXPECT_EQ(step.timeline[2].spans.at(0).start, 15 * kMillisecond);
}

/// The answer comes 0.1 ms after stage 0 could have begun with microbatch 1, which waits for 1/50
/// of 10 ms.
TEST(Simulator, APatientThreadWaitsForAnAnswerThatIsDue) {
  const auto model = traced_chain({0.010, 0.010, 0.010});
  auto machine = relaying_machine(3);
  machine.latency = 0.00005;
  const SimulationOptions options{.microbatches = 3, .forward_only = true, .record = true};
  const auto hasty = simulate_with(model, stage_each(model), machine, 0, options);
  machine.patient = true;
  const auto patient = simulate_with(model, stage_each(model), machine, 0, options);
  EXPECT_GT(hasty.timeline[2].spans.at(0).start, 29 * kMillisecond);
  EXPECT_LT(patient.timeline[2].spans.at(0).start, 21 * kMillisecond);
}

/// Where no answer that comes goes before what is due: 1F1B to the letter, whose ranks have no
/// slack. Always waiting takes 1.02 of it.
TEST(Simulator, PatienceInVainCostsLittle) {
  const int stages = 4, microbatches = 64;
  auto model = with_loss(traced_chain(std::vector<double>(stages, 0.010)));
  model.trace.backward_ratio = 2;
  Machine machine;
  machine.stages = stages;
  const auto schedule = schedule::make_schedule("1f1b", {stages, microbatches, 0});
  const auto step = simulate(model.trace, stage_each(model), machine,
                             {.microbatches = microbatches, .schedule = schedule.get()});
  EXPECT_LT(step.seconds, 1.006 * (microbatches + stages - 1) * 0.030);
}

/// Interleaved: stage 1 sends B0 back at 4 ms, while stage 0 computes F3 until 4 ms and has F4
/// left.
TEST(Simulator, ABackwardThatIsReadyGoesBeforeTheNextForward) {
  const auto step = simulate_chain({0.001, 0.001}, 8, {.microbatches = 8, .record = true});
  const auto& spans = step.timeline[0].spans;
  const auto backward = std::find_if(spans.begin(), spans.end(), [](const schedule::Span& span) {
    return span.phase == schedule::Phase::kBackward;
  });
  EXPECT_EQ(backward->microbatch, 0);
  EXPECT_LT(backward - spans.begin(), 8);
}

TEST(Simulator, AFasterStageIsBusyForLess) {
  const auto model = traced_chain({0.1, 0.1});
  auto machine = ideal_machine(2);
  machine.speeds = {1, 4};
  const auto step = simulate_with(model, stage_each(model), machine, 0, {.microbatches = 3});
  EXPECT_NEAR(step.busy[0], 0.9, 1e-9);
  EXPECT_NEAR(step.busy[1], 0.9 / 4, 1e-9);
}

// ---- cores that stages share -------------------------------------------------------------------

SimulatedStep simulate_oversubscribed(const TimedModel& model, const std::vector<int>& stages,
                                      Machine machine, double cores, SimulationOptions options) {
  std::vector<int> all(machine.stages);
  std::iota(all.begin(), all.end(), 0);
  machine.oversubscribed = {{all, cores}};
  return simulate_with(model, stages, machine, 0, options);
}

TEST(Simulator, StagesOnOneCoreTakeAsLongAsOneStage) {
  const auto model = traced_chain({0.1, 0.3, 0.2});
  for (const int microbatches : {1, 4, 9}) {
    const auto step = simulate_oversubscribed(model, stage_each(model), ideal_machine(3), 1,
                                              {.microbatches = microbatches});
    EXPECT_NEAR(step.seconds, microbatches * 0.6 * 3, 1e-7);
    EXPECT_NEAR(step.busy[1], microbatches * 0.3 * 3, 1e-9) << "work, not waiting for a core";
  }
}

TEST(Simulator, CoresAreNotIdleWhereStagesCouldUseThem) {
  const auto model = traced_chain(std::vector<double>(8, 0.1));
  const auto step =
      simulate_oversubscribed(model, stage_each(model), ideal_machine(8), 2, {.microbatches = 64});
  const double work = 64 * 8 * 0.1 * 3;
  EXPECT_GE(step.seconds, work / 2 - 1e-6);
  EXPECT_LT(step.seconds, 1.02 * work / 2);
}

TEST(Simulator, ACoreForEachIsAsIfNoneWereShared) {
  const auto model = traced_chain({0.1, 0.3, 0.2});
  const SimulationOptions options{.microbatches = 5, .jitter = 0.2, .seed = 3, .record = true};
  const auto alone = simulate_with(model, stage_each(model), Machine{.stages = 3}, 0, options);
  const auto shared =
      simulate_oversubscribed(model, stage_each(model), Machine{.stages = 3}, 3, options);
  EXPECT_NEAR(shared.seconds, alone.seconds, 1e-7);
  EXPECT_EQ(shared.peak_activations, alone.peak_activations);
  ASSERT_EQ(shared.timeline[1].spans.size(), alone.timeline[1].spans.size());
  EXPECT_EQ(shared.timeline[1].busy_cpu(), alone.timeline[1].busy_cpu());
  EXPECT_TRUE(shared.timeline[1].oversubscribed);
}

// ---- jitter ------------------------------------------------------------------------------------

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

}  // namespace
}  // namespace smp::simulate
