// Gradients that are refused, steps that fail, hooks that wait, and whose bytes are kept.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "server/sums/gradient_accumulator.h"
#include "server/sums/gradient_accumulator_testing.h"
#include "smp/error.h"

namespace smp::server::test {
namespace gradient_accumulator_failure_test {

using testing::ElementsAre;

// ---- guard, failure, hooks ---------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, RefusesGradientsThatTheGuardRefuses) {
  refuse_ = true;
  EXPECT_THROW(put(record(0), 1), UsageError);
  EXPECT_THROW(put(record_after(0, call_path({1})), 1), UsageError);  // and again
  EXPECT_EQ(accumulator_.waiting().bytes(), 0u);
}

TEST_F(GradientAccumulatorTest, AsksTheGuardOnceAStep) {
  for (int step = 1; step <= 3; ++step) {
    const auto first = record_reaching({&weight_, &other_}, 0, call_path({0}));
    const auto second = record_reaching({&weight_}, 0, call_path({1}));
    accumulator_.mark_forward_done(0);
    put(second, weight_, 1);
    put(first, weight_, 1);
    put(first, other_, 1);
    EXPECT_EQ(guarded_[weight_.tensor.unsafeGetTensorImpl()], step);
    EXPECT_EQ(guarded_[other_.tensor.unsafeGetTensorImpl()], step);
    accumulator_.finish();
    accumulator_.begin(3);
  }
}

TEST_F(GradientAccumulatorTest, ForgetsAFailedStep) {
  const auto id = record(1);
  put(id, 5);
  put(record_after(1, call_path({3})), 6);
  accumulator_.mark_closed(record(2));
  accumulator_.drop();
  EXPECT_EQ(accumulator_.waiting().bytes(), 0u);
  accumulator_.mark_closed(id);  // messages of the failed step
  accumulator_.mark_forward_done(1);
  accumulator_.mark_microbatch_done(2);
  accumulator_.settle();
  accumulator_.begin(1);
  const auto next = record(0);
  accumulator_.mark_closed(id);
  accumulator_.mark_closed({});
  accumulator_.mark_forward_done(0);
  put_and_close(next, 2);
  EXPECT_THAT(weight_.applied, ElementsAre(2));
  EXPECT_EQ(weight_.grad(), 2);
  accumulator_.finish();
}

TEST_F(GradientAccumulatorTest, ForgetsAStepThatAHookFailed) {
  weight_.on_hook = [] { throw UsageError("hook"); };
  const auto first = record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put(second, 2);
  EXPECT_THROW(put(first, 1), UsageError);
  accumulator_.drop();
  weight_.on_hook = nullptr;
  weight_.applied.clear();
  accumulator_.begin(2);
  const auto next = record(0);
  accumulator_.mark_forward_done(0);
  put_and_close(next, 3);
  accumulator_.finish();
  EXPECT_THAT(weight_.applied, ElementsAre(3));
  EXPECT_EQ(weight_.grad(), 3);
}

/// What another fiber gives while a hook has suspended this one.
TEST_F(GradientAccumulatorTest, KeepsTheOrderWhileAHookWaits) {
  const auto first = record(0);
  const auto second = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  weight_.on_hook = [&] {
    weight_.on_hook = nullptr;
    put_and_close(second, 2);
    for (int i = 0; i < 100; ++i) accumulator_.open(0, call_path({1}), true);
    EXPECT_FALSE(weight_.tensor.grad().defined());  // the first must be added before
  };
  put_and_close(first, 1);
  EXPECT_THAT(weight_.applied, ElementsAre(1, 2));
  EXPECT_EQ(weight_.grad(), 3);
}

// ---- bytes -------------------------------------------------------------------------------------

TEST_F(GradientAccumulatorTest, CountsBytesOfSparseGradients) {
  const auto table = at::zeros({4, 2}).requires_grad_();
  const auto edge = torch::autograd::impl::gradient_edge(table);
  const auto give = [&](ExecutionId id, at::Tensor gradient) {
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass(accumulator_, id, false)
        .put(static_cast<torch::autograd::AccumulateGrad&>(*edge.function), {std::move(gradient)});
  };
  const auto first = accumulator_.open(0, call_path({0}), false);
  const auto second = accumulator_.open(0, call_path({1}), false);
  accumulator_.recorded(first, {edge});
  accumulator_.recorded(second, {edge});
  accumulator_.mark_forward_done(0);
  give(second, at::sparse_coo_tensor(at::full({1, 1}, 1, at::kLong), at::ones({1, 2}), {4, 2}));
  EXPECT_EQ(accumulator_.waiting().bytes(), 0u);
  give(first, at::ones({4, 2}));
  EXPECT_EQ(accumulator_.waiting().bytes(), 0u);
  EXPECT_EQ(table.grad().sum().item<float>(), 10);
}

/// LibTorch's leaf steals a gradient that nobody else holds, though a view's bytes are another's.
TEST_F(GradientAccumulatorTest, DoesNotKeepBytesThatOthersSee) {
  const auto id = record(0);
  accumulator_.mark_forward_done(0);
  const auto sent = at::full({}, 3, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    variable_list gradients;
    gradients.push_back(sent.detach());
    GradientAccumulator::Pass(accumulator_, id, false).put(weight_.leaf(), std::move(gradients));
  }
  EXPECT_NE(weight_.tensor.grad().data_ptr(), sent.data_ptr());
}

}  // namespace gradient_accumulator_failure_test
}  // namespace smp::server::test
