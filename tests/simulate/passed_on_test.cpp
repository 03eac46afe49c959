// Results that go from stage to stage, and not through the stage of their caller.
#include <gmock/gmock.h>

#include <numeric>

#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using base::kMillisecond;
using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

std::int64_t messages_of(const SimulatedStep& step) {
  return std::accumulate(step.messages.begin(), step.messages.end(), std::int64_t{0});
}

/// k requests: from the caller to the first, k - 1 from one to the next, and to the caller; and as
/// many gradients.
TEST(PassedOn, AChainOfRequestsSendsOneTensorMore) {
  for (int k = 1; k <= 6; ++k) {
    const auto step =
        simulate_chain(std::vector<double>(static_cast<std::size_t>(k) + 1, 0.01), 0, {});
    EXPECT_EQ(messages_of(step), 2 * (k + 1));
    EXPECT_THAT(step.messages, Each(2));
  }
}

/// An operator between two requests is one on a fast stage, too.
TEST(PassedOn, ACallerThatComputesGetsTheResultHoweverFastItIs) {
  for (const double between : {0.0, 8e-6}) {
    TimedModel model;
    const int root = model.call_again(0, -1, 0);
    model.call(root, 0.010, 1);
    model.call(root, 0.010, 1);
    model.trace.calls[2].before.seconds = between;
    std::vector<std::int64_t> messages;
    for (const double speed : {1.0, 8.0}) {
      auto machine = ideal_machine(3);
      machine.speeds = {speed, 1, 1};
      messages.push_back(messages_of(simulate_with(model, {0, 1, 2}, machine, 3, {})));
    }
    EXPECT_EQ(messages[0], between > 0 ? 8 : 6);
    EXPECT_EQ(messages[1], messages[0]);
  }
}

// ---- a loss that a module returns --------------------------------------------------------------

/// It does not come to its caller, nor does its gradient come from there.
TEST(PassedOn, BackwardBeginsWhereTheLossIs) {
  for (int k = 1; k <= 6; ++k) {
    const auto model =
        with_loss(traced_chain(std::vector<double>(static_cast<std::size_t>(k) + 1, 0.010)));
    auto machine = ideal_machine(k + 1);
    machine.latency = 0.002;
    const auto step = simulate_with(model, stage_each(model), machine, k + 1, {});
    EXPECT_EQ(messages_of(step), 2 * k);
    EXPECT_NEAR(step.seconds, (k + 1) * 0.030 + 2 * k * 0.002, 1e-9);
    machine.promised_outputs = false;
    const auto relayed = simulate_with(model, stage_each(model), machine, k + 1, {});
    EXPECT_EQ(messages_of(relayed), 4 * k);
  }
}

/// The body computes with it, or it is not the last call.
TEST(PassedOn, ALossThatIsUsedComesToTheBody) {
  auto model = with_loss(traced_chain({0.010, 0.010}));
  model.trace.body_after.seconds = 0.001;
  EXPECT_EQ(messages_of(simulate_with(model, stage_each(model), ideal_machine(2), 2, {})), 4);
  auto two = traced_chain({0.010, 0.010, 0.010});
  two.trace.loss_call = 2;
  EXPECT_EQ(messages_of(simulate_with(two, stage_each(two), ideal_machine(3), 2, {})), 6);
}

/// The module that is asked for may have it from one of its own.
TEST(PassedOn, ALossMayComeFromFurtherBelow) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int outer = model.call(root, 0.010, 1);
  model.trace.loss_call = model.call(outer, 0.010, 1);
  const auto step = simulate_with(model, {0, 1, 2}, ideal_machine(3), 2, {});
  EXPECT_EQ(messages_of(step), 6) << "without the loss and its gradient, between 0 and 1";
}

/// "simple" has all other forwards first.
TEST(PassedOn, ALossWaitsForItsSchedule) {
  const auto model = with_loss(traced_chain({0.010, 0.010}));
  const SimulationOptions options{.microbatches = 4};
  const auto step = simulate_with(model, stage_each(model), ideal_machine(2), 0, options);
  EXPECT_EQ(messages_of(step), 4 * 4);
  EXPECT_NEAR(step.seconds, 5 * 0.030, 1e-9);
}

// ---- what messages cost ------------------------------------------------------------------------

TEST(PassedOn, EachMessageIsPaidOnce) {
  for (const int k : {1, 2, 5}) {
    const auto model = traced_chain(std::vector<double>(static_cast<std::size_t>(k) + 1, 0.010));
    auto machine = ideal_machine(k + 1);
    machine.latency = 0.001;
    machine.handling = 0.0005;
    const auto seconds = [&] {
      return simulate_with(model, stage_each(model), machine, 0, {}).seconds;
    };
    const double work = (k + 1) * 0.030;
    EXPECT_NEAR(seconds(), work + 2 * (k + 1) * 0.002, 1e-9);
    machine.promised_outputs = false;
    EXPECT_NEAR(seconds(), work + 2 * 2 * k * 0.002, 1e-9);
  }
}

TEST(PassedOn, WhatTravelsIsTheInputOfTheNextCall) {
  auto model = traced_chain({0.010, 0.010, 0.010});
  model.trace.calls[2].input_bytes = 1'000'000;
  model.trace.calls[2].output_bytes = 64'000'000;  // goes nowhere as it is
  model.trace.calls[3].input_bytes = 2'000'000;
  model.trace.calls[3].output_bytes = 4'000'000;
  auto machine = ideal_machine(3);
  machine.bytes_per_second = 1e9;
  const SimulationOptions forward{.forward_only = true};
  EXPECT_NEAR(simulate_with(model, stage_each(model), machine, 0, forward).seconds,
              0.030 + 0.001 + 0.002 + 0.004, 1e-9);
  // Gradients: of the output of each call.
  EXPECT_NEAR(simulate_with(model, stage_each(model), machine, 0, {}).seconds,
              0.037 + 0.060 + 0.004 + 0.064 + 0.001, 1e-9);
}

/// Stage 1 has microbatch 0 ready for stage 2 at 14 ms, while stage 0 computes microbatch 1 until
/// 20 ms.
TEST(PassedOn, NobodyWaitsForTheCallersThread) {
  const auto step = simulate_chain({0.010, 0.004, 0.004}, 0, {.microbatches = 2, .record = true});
  EXPECT_EQ(step.timeline[2].spans.at(0).start, 14 * kMillisecond);
}

/// Interleaved: stage 2 has the gradient of microbatch 0 for stage 1 at 22 ms, while stage 0
/// computes until 30 ms.
TEST(PassedOn, NorInBackward) {
  const auto backward_of_stage_1 = [](const Machine& machine) {
    const auto model = traced_chain({0.010, 0.001, 0.001});
    const auto step =
        simulate_with(model, stage_each(model), machine, 4, {.microbatches = 4, .record = true});
    for (const auto& span : step.timeline[1].spans) {
      if (span.phase == schedule::Phase::kBackward) return span.start;
    }
    return base::Nanoseconds{-1};
  };
  // Forward: 10, 11, 12; the body begins the backward at 20, between two computations.
  EXPECT_EQ(backward_of_stage_1(ideal_machine(3)), 22 * kMillisecond);
  EXPECT_GE(backward_of_stage_1(relaying_machine(3)), 30 * kMillisecond);
}

/// Two calls on stages 1 and 2, between which their caller on stage 0 computes.
TimedModel with_computation_between(double seconds) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  model.call(root, 0.010);
  model.call(root, 0.010);
  model.trace.calls[2].before.seconds = seconds;
  return model;
}

bool passes_on(const TimedModel& model) {
  const auto step = simulate_with(model, {0, 1, 2}, ideal_machine(3), 0, {});
  EXPECT_NEAR(step.busy[0], 3 * model.trace.calls[2].before.seconds, 1e-9) << "nothing is lost";
  const auto messages = messages_of(step);
  EXPECT_TRUE(messages == 6 || messages == 8) << messages;
  return messages == 6;
}

TEST(PassedOn, ACallerThatComputesInBetweenGetsTheResult) {
  EXPECT_TRUE(passes_on(with_computation_between(0)));
  EXPECT_TRUE(passes_on(with_computation_between(1e-6))) << "only the price of the call";
  EXPECT_FALSE(passes_on(with_computation_between(3e-6))) << "one operator";
  EXPECT_FALSE(passes_on(with_computation_between(1e-3)));
}

TEST(PassedOn, ACallerThatKeepsSomethingOfItGetsTheResult) {
  auto model = with_computation_between(1e-6);
  model.trace.calls[2].before.activation_bytes = 1;
  EXPECT_FALSE(passes_on(model));
  model.trace.calls[2].before.activation_bytes = 0;
  model.trace.shared.push_back({100, {{1}, {2, true}}});
  EXPECT_FALSE(passes_on(model));
}

TEST(PassedOn, WhereStateIsKeptInOrderEveryCallIsAwaited) {
  auto model = with_computation_between(0);
  model.trace.state.push_back({1, StateKind::kCache, "has a cache"});
  EXPECT_TRUE(passes_on(model));
  model.trace.state.push_back({2, StateKind::kOrdered, "counts its calls"});
  EXPECT_FALSE(passes_on(model));
}

TEST(PassedOn, WhatIsNegligibleIsDoneBeforeTheChain) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  for (int i = 0; i < 3; ++i) model.call(root, 0.010);
  for (int i = 1; i <= 3; ++i) model.trace.calls[i].before.seconds = 1e-6;
  const auto step = simulate_with(model, {0, 1, 2, 1}, ideal_machine(3), 0,
                                  {.forward_only = true, .record = true});
  EXPECT_EQ(messages_of(step), 4);
  ASSERT_EQ(step.timeline[0].spans.size(), 1u);
  EXPECT_EQ(step.timeline[0].spans[0].end, 3 * base::kMicrosecond);
  EXPECT_NEAR(step.seconds, 0.030003, 1e-9);
}

TEST(PassedOn, WhatStaysOnItsStageIsNoMessage) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  for (int i = 0; i < 3; ++i) model.call(root, 0.010);
  auto machine = ideal_machine(2);
  machine.latency = 0.001;
  const auto step = simulate_with(model, {0, 1, 1, 1}, machine, 0, {});
  EXPECT_THAT(step.messages, ElementsAre(2, 2));
  EXPECT_NEAR(step.seconds, 3 * 0.030 + 4 * 0.001, 1e-9);
}

TEST(PassedOn, ACallerThatIsARequestItselfAnswersWithTheLastResult) {
  TimedModel model;
  const int root = model.call_again(0, -1, 0);
  const int block = model.call(root, 0.010);  // on stage 1; its layers on 2 and 0
  model.call(block, 0.010);
  model.call(block, 0.010);
  model.call(root, 0.010);  // on stage 2
  const auto step = simulate_with(model, {0, 1, 2, 0, 2}, ideal_machine(3), 0, {});
  // Forward: 0 to 1, 1 to 2, 2 to 0, 0 to 1, 1 to 2, 2 to 0.
  EXPECT_THAT(step.messages, ElementsAre(4, 4, 4));
  EXPECT_NEAR(step.seconds, 4 * 0.030, 1e-9);
}

TEST(PassedOn, TheCallerHoldsWhatItHasButNotWhatTravels) {
  auto model = traced_chain({0.1, 0.1, 0.1});
  model.trace.calls[2].input_bytes = 10;  // the caller's own
  model.trace.calls[2].caller_live_bytes = 10;
  model.trace.calls[3].input_bytes = 200;
  model.trace.calls[3].caller_live_bytes =
      200 + 10;  // the result of the first, and the first input
  const auto peak = [&](const Machine& machine) {
    return simulate_with(model, stage_each(model), machine, 0, {}).peak_activations[0];
  };
  EXPECT_EQ(peak(ideal_machine(3)), 1 + 10);
  EXPECT_EQ(peak(relaying_machine(3)), 1 + 210);
  model.trace.calls[2].output_bytes = 200;
  model.trace.calls[2].caller_gradient_bytes = 200 + 3000;
  // The gradient of the first input comes meanwhile.
  EXPECT_EQ(peak(ideal_machine(3)), 1 + 3000 + 10);
  EXPECT_EQ(peak(relaying_machine(3)), 1 + 3200 + 10);
}

TEST(PassedOn, JitterIsTheSameWhetherResultsAreRelayedOrNot) {
  const auto model = traced_chain({0.1, 0.1, 0.1});
  const SimulationOptions options{.microbatches = 4, .jitter = 0.2, .seed = 5};
  EXPECT_THAT(simulate_with(model, stage_each(model), ideal_machine(3), 0, options).busy,
              testing::Pointwise(
                  DoubleNear(1e-12),
                  simulate_with(model, stage_each(model), relaying_machine(3), 0, options).busy));
}

}  // namespace
}  // namespace smp::simulate
