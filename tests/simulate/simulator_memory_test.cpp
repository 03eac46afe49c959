// What is live on each stage in a simulated step, and how many microbatches are in flight.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "simulate/gradient_sums.h"
#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Le;

TEST(SimulatedMemory, SimpleKeepsTheActivationsOfAllMicrobatches) {
  const auto step = simulate_chain({0.1, 0.1, 0.1}, 0, {.microbatches = 6});
  EXPECT_THAT(step.peak_activations, ElementsAre(6, 6, 6));
}

TEST(SimulatedMemory, InterleavedKeepsThoseOfItsCap) {
  for (int cap = 1; cap <= 4; ++cap) {
    const auto step = simulate_chain({0.1, 0.1, 0.1}, cap, {.microbatches = 12});
    EXPECT_EQ(step.peak_activations[0], cap);
    EXPECT_THAT(step.peak_activations, Each(Le(cap)));
  }
}

TEST(SimulatedMemory, GradientsComeOnTopOfActivations) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.calls[2].after.gradient_bytes = 50;
  const auto schedule = schedule::make_simple();
  SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  const auto step = simulate(model.trace, {0, 0, 1}, ideal_machine(2), options);
  EXPECT_THAT(step.peak_activations, ElementsAre(6, 6 + 50));
  options.forward_only = true;
  const auto forward = simulate(model.trace, {0, 0, 1}, ideal_machine(2), options);
  EXPECT_THAT(forward.peak_activations, Each(0));
}

/// Gradients of weights come with the first backward: then a microbatch's activations have gone.
TEST(SimulatedMemory, ActivationsAndGradientsOfWeightsPeakAtDifferentMoments) {
  const auto model = traced_chain({0.1, 0.1});
  const auto schedule = schedule::make_simple();
  WeightGradients gradients{{100, 3}, {{}, {0}, {1}}};
  SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  options.gradients = &gradients;
  const auto peaks = [&] {
    return simulate(model.trace, {0, 0, 1}, ideal_machine(2), options).peak_activations;
  };
  EXPECT_THAT(peaks(), ElementsAre(5, 5)) << "after the first backward, not before it";
  gradients.bytes = {100, 0};
  EXPECT_THAT(peaks(), ElementsAre(5, 6));
  options.forward_only = true;
  EXPECT_THAT(peaks(), Each(0));
}

std::int64_t most_of(const std::vector<LiveMoment>& moments) {
  std::int64_t most = 0;
  for (const auto& moment : moments) most = std::max(most, moment.most);
  return most;
}

/// Each second a microbatch's forward, then each two seconds a backward, which lets go as it
/// begins.
TEST(SimulatedMemory, IsRecordedFromMomentToMoment) {
  const auto step = simulate_chain({1}, 0, {.microbatches = 2, .record = true});
  constexpr auto kSecond = base::kSecond;
  EXPECT_THAT(step.live, ElementsAre(ElementsAre(LiveMoment{0, 1, 1}, LiveMoment{kSecond, 2, 2},
                                                 LiveMoment{2 * kSecond, 1, 1},
                                                 LiveMoment{4 * kSecond, 0, 0})));
  EXPECT_TRUE(simulate_chain({1}, 0, {.microbatches = 2}).live.empty());
}

/// Gradients need memory for a moment, and messages while they are on their way.
TEST(SimulatedMemory, TheMostOfItsMomentsIsThePeak) {
  auto model = traced_chain({0.1, 0.2, 0.1});
  model.trace.calls[2].after.gradient_bytes = 50;
  model.trace.calls[2].caller_live_bytes = 7;
  for (auto& call : model.trace.calls) call.input_bytes = 11;
  const auto machine = ideal_machine(3);
  for (const int cap : {0, 1, 3}) {
    const auto step =
        simulate_with(model, stage_each(model), machine, cap, {.microbatches = 6, .record = true});
    ASSERT_EQ(step.live.size(), 3u);
    for (std::size_t stage = 0; stage < 3; ++stage) {
      const auto& live = step.live[stage];
      EXPECT_EQ(most_of(live), step.peak_activations[stage]);
      ASSERT_FALSE(live.empty());
      EXPECT_EQ(live.back().bytes, 0) << "all is let go of";
      for (std::size_t i = 0; i < live.size(); ++i) {
        EXPECT_GE(live[i].most, live[i].bytes);
        EXPECT_TRUE(i == 0 || live[i - 1].time < live[i].time);
      }
    }
  }
}

/// Two operations of each microbatch use weight 0, one of them weight 1.
TEST(GradientSums, HoldWhatComesBeforeItsTurn) {
  auto model = traced_chain({0.1, 0.1});
  const auto program = compile(model.trace, {0, 0, 0}, ideal_machine(1));
  const WeightGradients gradients{{100, 7}, {{}, {0}, {0, 1}}};
  GradientSums sums(program, 3, &gradients);
  EXPECT_THAT(sums.expected(1), ElementsAre(107));
  std::vector<int> operations;
  for (int i = program.tasks[0].last; i >= 0; i = program.operations[i].previous) {
    if (!program.modules[i].empty() && program.modules[i].back() != 0) operations.push_back(i);
  }
  ASSERT_EQ(operations.size(), 2u);
  const auto [second, first] = std::pair(operations[0], operations[1]);
  EXPECT_EQ(sums.made_by(second, 1), 107) << "both wait for microbatch 0";
  EXPECT_EQ(sums.made_by(first, 1), 0);
  EXPECT_EQ(sums.made_by(second, 0), 107 - 7) << "the second weight's sum takes in microbatch 1";
  EXPECT_EQ(sums.made_by(first, 0), -100);
  EXPECT_EQ(sums.made_by(second, 2), 100) << "the second weight's goes into its sum at once";
  EXPECT_EQ(sums.made_by(first, 2), -100);
}

TEST(SimulatedMemory, OnlyCopiesOfTheBatchCount) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.shared = {{50, {{0, true}, {1, false}, {2, false}}}};
  const auto schedule = schedule::make_simple();
  const SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  EXPECT_THAT(simulate(model.trace, {0, 0, 1}, ideal_machine(2), options).peak_activations,
              ElementsAre(6, 6 + 6 * 50));
}

TEST(SimulatedMemory, WhatIsLiveInACallerStaysUntilTheAnswer) {
  auto model = traced_chain({0.1, 0.1});
  model.trace.calls[2].caller_live_bytes = 10;
  const auto schedule = schedule::make_simple();
  const SimulationOptions options{.microbatches = 6, .schedule = schedule.get()};
  const auto peak = [&] {
    return simulate(model.trace, {0, 0, 1}, ideal_machine(2), options).peak_activations;
  };
  EXPECT_EQ(peak()[0], 6 + 2 * 10);  // an answer comes as the next request goes
  model.trace.calls[2].caller_gradient_bytes = 1000;
  EXPECT_EQ(peak()[0], 6 + 6 * 1000);  // all begin backward at once
}

/// The body sends a gradient of 100 bytes each 10 ms; who gets them needs 200 ms for the first, and
/// has no look at the others until then.
TEST(SimulatedMemory, GradientsAreWithTheirSenderUntilTheReceiverPolls) {
  auto model = traced_chain({0.1});
  model.trace.calls[1].output_bytes = 100;
  model.trace.body_after.seconds = model.trace.body_after.backward_seconds = 0.01;
  const auto step = simulate_with(model, {0, 1}, ideal_machine(2), 0, {.microbatches = 6});
  EXPECT_THAT(step.peak_activations, ElementsAre(5 * 100, 5 + 5 * 100));
}

int most_in_flight(const SimulatedStep& step) {
  std::map<int, schedule::Span> lives;
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

TEST(SimulatedMemory, NeverHasMoreMicrobatchesInFlightThanTheCap) {
  for (int cap = 1; cap <= 5; ++cap) {
    const auto step = simulate_chain({0.1, 0.1, 0.1, 0.1}, cap,
                                     {.microbatches = 12, .jitter = 0.2, .record = true});
    EXPECT_EQ(most_in_flight(step), cap);
  }
}

}  // namespace
}  // namespace smp::simulate
