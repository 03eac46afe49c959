// What calls that are computed again keep, and how long a step with them takes.
#include "simulate/recomputation.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <numeric>

#include "simulate/most_activations.h"
#include "simulate/random_timed_model.h"
#include "simulate/simulate_chain.h"

namespace smp::simulate {
namespace {

using testing::Each;
using testing::ElementsAre;

const std::vector<int> kOneStage(10, 0);

/// A model that calls modules 1 and 3; 1 calls 2 in between.
TimedModel nested_model() {
  TimedModel model;
  const int root = model.call_again(0, -1, 1, 1);
  const int outer = model.call(root, 2, 20);
  model.call(outer, 4, 40);
  model.call(root, 8, 80);
  model.trace.calls[outer].input_bytes = 1000;
  model.trace.calls[2].before = {16, 160};
  model.trace.calls[2].input_bytes = 2000;
  model.trace.calls[2].output_bytes = 3000;
  return model;
}

Trace again_of(const std::vector<int>& modules, bool keeps_products = false) {
  Trace trace;
  for (const int module : modules) trace.recomputed.push_back({module, keeps_products});
  return trace;
}

TEST(Recomputation, KeepsTheInputAndAddsTheForwardToTheBackward) {
  const auto model = nested_model();
  const auto again = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000) << "from its first interval on";
  EXPECT_EQ(again.calls[1].after.activation_bytes, 0);
  EXPECT_EQ(again.calls[2].after.activation_bytes, 0) << "a part of it";
  EXPECT_EQ(again.calls[3].after, model.trace.calls[3].after);
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[2].before), 3 * 16);
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[2].after), 3 * 4);
  EXPECT_DOUBLE_EQ(again.times_of(again.calls[1].after).weights,
                   model.trace.times_of(model.trace.calls[1].after).weights);
  // All of it is there when its backward begins, and goes as that proceeds.
  EXPECT_EQ(again.calls[1].after.gradient_bytes, 160 + 40 + 20);
  EXPECT_EQ(again.calls[2].after.gradient_bytes, 160 + 40);
  EXPECT_EQ(again.calls[2].before.gradient_bytes, 160);
}

TEST(Recomputation, KeepsWhatAnotherStageGave) {
  const auto model = nested_model();
  const std::vector<int> apart{0, 0, 1, 0};
  const auto again = with_recomputation(model.trace, again_of({1}), apart);
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000 + 3000);
  EXPECT_EQ(again.calls[2].after, model.trace.calls[2].after) << "it is not computed again there";
  const auto both = with_recomputation(model.trace, again_of({1, 2}), apart);
  EXPECT_EQ(both.calls[2].after.activation_bytes, 2000) << "there it is a call of its own";
  EXPECT_DOUBLE_EQ(both.backward_of(both.calls[2].after), 3 * 4);
}

/// Of the 20 bytes that module 1 saves 5 are what its products return, which are 12 in all and take
/// half of its time.
TEST(Recomputation, KeepsProductsAndDoesNotComputeThemAgain) {
  auto model = nested_model();
  auto& own = model.trace.calls[1].after;
  own.product_seconds = own.seconds / 2;
  own.product_bytes = 12;
  own.saved_product_bytes = 5;
  const auto again =
      with_recomputation(model.trace, again_of({1}, /*keeps_products=*/true), kOneStage);
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000);
  EXPECT_EQ(again.calls[1].after.activation_bytes, 12);
  EXPECT_EQ(again.calls[1].after.gradient_bytes, 160 + 40 + 20 - 5) << "5 are there already";
  EXPECT_EQ(again.calls[2].after.gradient_bytes, 160 + 40);
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[1].after), 2.5 * 2);
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[2].after), 3 * 4);
  const auto none = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(none.calls[1].after.activation_bytes, 0);
  EXPECT_DOUBLE_EQ(none.backward_of(none.calls[1].after), 3 * 2);
}

/// A tensor of the batch is there where the body runs; on another stage it is a copy, and an input.
TEST(Recomputation, HoldsNothingOfTheBatchWhereItIs) {
  auto model = nested_model();
  model.trace.calls[1].input_bytes = 1000;
  model.trace.shared = {{300, {{0, true}, {1, true}, {1, false}}}};
  const auto here = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(here.calls[2].before.activation_bytes, 1000 - 300);
  const auto there = with_recomputation(model.trace, again_of({1}), {0, 1, 1, 0});
  EXPECT_EQ(there.calls[2].before.activation_bytes, 1000);
}

TEST(Recomputation, SharedTensorsStayWithThoseWhoHoldThem) {
  auto model = nested_model();
  // Kept by 1 first, and by the model after it.
  model.trace.shared = {{15, {{1, false}, {3, true}, {0, false}}}};
  auto again = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(again.calls[3].before.activation_bytes, 15);
  ASSERT_EQ(again.shared.size(), 1u);
  EXPECT_EQ(again.shared[0].keepers.size(), 2u);
  // Held by the model before: as an input it counts once.
  model.trace.shared = {{15, {{1, true}, {1, false}}}};
  again = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000 - 15);
  EXPECT_TRUE(again.shared.empty());
}

/// Module 1 computes after what another stage gives it: all of it again, before the backward goes
/// to that stage.
TEST(Recomputation, IsThereWhileAnotherStageHasTheGradients) {
  const auto model = nested_model();
  const auto again = with_recomputation(model.trace, again_of({1}), {0, 0, 1, 0});
  EXPECT_EQ(again.calls[2].caller_gradient_bytes, 160);
  EXPECT_EQ(again.calls[1].after.gradient_bytes, 160 + 20);
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[1].after), 2 * 2 + (16 + 2));
  EXPECT_DOUBLE_EQ(again.backward_of(again.calls[2].before), 2 * 16);
  auto nothing_after = model;
  nothing_after.trace.calls[1].after.activation_bytes = 0;
  const auto later = with_recomputation(nothing_after.trace, again_of({1}), {0, 0, 1, 0});
  EXPECT_EQ(later.calls[2].caller_gradient_bytes, 0)
      << "it is computed when the gradients come back";
  EXPECT_DOUBLE_EQ(later.backward_of(later.calls[2].before), 2 * 16 + 16);
}

constexpr auto kKept = TensorUseKind::kKept;
constexpr auto kArgument = TensorUseKind::kArgument;
constexpr auto kResult = TensorUseKind::kResult;

/// Modules 1 and 2 get 1000 bytes each, of which 600 are the same tensor; 3 keeps it.
TimedModel fork_model() {
  TimedModel model;
  const int root = model.call_again(0, -1, 1);
  for (int i = 0; i < 3; ++i) model.call(root, 1, 0);
  for (const int call : {1, 2}) model.trace.calls[call].input_bytes = 1000;
  model.trace.uses = {{0, 600, kArgument, {1}}, {0, 600, kArgument, {2}}};
  return model;
}

/// Module 2 keeps 50 of the 1000 bytes that module 1 got, which are there anyway.
TEST(Recomputation, WhatACallGotIsNotMadeAgain) {
  auto model = nested_model();
  model.trace.uses = {{0, 50, kKept, {2, true}}, {0, 50, kArgument, {1}}, {0, 50, kArgument, {2}}};
  const auto again = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000);
  EXPECT_EQ(again.calls[2].before.gradient_bytes, 160 - 50);
  EXPECT_EQ(again.calls[1].after.gradient_bytes, 160 - 50 + 40 + 20);
}

std::vector<std::int64_t> kept_inputs(const TimedModel& model, const std::vector<int>& stages) {
  const auto again = with_recomputation(model.trace, again_of({1, 2}), stages);
  return {again.calls[1].after.activation_bytes, again.calls[2].after.activation_bytes};
}

TEST(Recomputation, AnInputOfTwoCallsIsOneTensor) {
  auto model = fork_model();
  EXPECT_THAT(kept_inputs(model, kOneStage), ElementsAre(1000, 400));
  const std::vector<int> apart{0, 1, 1, 0};
  EXPECT_THAT(kept_inputs(model, apart), ElementsAre(1000, 1000)) << "each request has its copy";
  model.trace.calls[0].sequential = true;
  EXPECT_THAT(kept_inputs(model, apart), ElementsAre(1000, 400)) << "one request";
}

TEST(Recomputation, WhatAnOperatorKeepsIsNoFurtherInput) {
  auto model = fork_model();
  model.trace.uses.insert(model.trace.uses.begin(), {0, 600, kKept, {3}});
  EXPECT_THAT(kept_inputs(model, kOneStage), ElementsAre(400, 400));
  EXPECT_THAT(kept_inputs(model, {0, 0, 0, 1}), ElementsAre(1000, 400)) << "the copy is elsewhere";
  model.trace.uses[0].at = {1};
  EXPECT_THAT(kept_inputs(model, kOneStage), ElementsAre(1000, 400)) << "that is computed again";
}

/// Module 2, on another stage, gives 3000 bytes to module 1, which returns them; 3 gets them.
TEST(Recomputation, AnAnswerThatGoesOnIsOneTensor) {
  auto model = nested_model();
  model.trace.calls[3].input_bytes = 3500;
  model.trace.uses = {{0, 3000, kResult, {2}}, {0, 3000, kResult, {1}}, {0, 3000, kArgument, {3}}};
  const auto again = with_recomputation(model.trace, again_of({1, 3}), {0, 0, 1, 0});
  EXPECT_EQ(again.calls[2].before.activation_bytes, 1000 + 3000);
  EXPECT_EQ(again.calls[3].after.activation_bytes, 500);
  const auto here = with_recomputation(model.trace, again_of({1, 3}), kOneStage);
  EXPECT_EQ(here.calls[2].before.activation_bytes, 1000);
  EXPECT_EQ(here.calls[3].after.activation_bytes, 3500) << "nobody else has it";
}

TEST(Recomputation, WhatHasNoBackwardRunsOnce) {
  auto model = nested_model();
  for (auto& call : model.trace.calls) {
    call.before.backward_seconds = call.after.backward_seconds = 0;
  }
  const auto again = with_recomputation(model.trace, again_of({1}), kOneStage);
  EXPECT_EQ(again.calls, model.trace.calls);
}

double work_of(const SimulatedStep& step) {
  return std::accumulate(step.busy.begin(), step.busy.end(), 0.0);
}

RC_GTEST_PROP(Recomputation, AddsTheForwardOfWhatIsComputedAgain, ()) {
  auto model = random_timed_model();
  fill_in_bytes(model.trace);
  const auto stages = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(model.modules),
                                                            rc::gen::inRange(0, 3));
  const auto schedule = schedule::make_interleaved(3);
  const SimulationOptions options{.microbatches = 4, .schedule = schedule.get()};
  const auto machine = ideal_machine(3);
  const auto plain = simulate(model.trace, stages, machine, options);
  for (int m = 0; m < model.modules; ++m) model.trace.recomputed.push_back({m});
  const auto again = simulate(model.trace, stages, machine, options);
  double forward = 0;
  for (const auto& call : model.trace.calls) {
    forward += call.after.seconds + (call.caller < 0 ? 0 : call.before.seconds);
  }
  RC_ASSERT(std::abs(work_of(again) - work_of(plain) - 4 * forward) < 1e-6);
}

/// Four equal blocks: what is in flight keeps its inputs, and one block is whole for a moment.
TEST(Recomputation, APipelineHoldsInputsAndOneBlock) {
  TimedModel model;
  model.trace.calls[model.call_again(0, -1, 0)].sequential = true;
  for (int i = 0; i < 4; ++i) {
    model.trace.calls[model.call(0, 0.1, 100)].input_bytes = 7;
    model.trace.recomputed.push_back({i + 1});
  }
  const auto schedule = schedule::make_simple();
  const SimulationOptions options{.microbatches = 5, .schedule = schedule.get()};
  const auto step = simulate(model.trace, kOneStage, ideal_machine(1), options);
  EXPECT_THAT(step.peak_activations, ElementsAre(5 * 4 * 7 + 100));
  EXPECT_THAT(most_activations(model.trace, kOneStage, ideal_machine(1), options),
              ElementsAre(5 * 4 * 7 + 100));
  EXPECT_NEAR(step.seconds, 5 * 4 * 0.4, 1e-9) << "forward, forward again, and twice that back";
}

}  // namespace
}  // namespace smp::simulate
