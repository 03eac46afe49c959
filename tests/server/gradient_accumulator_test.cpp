// The order of sums: within a microbatch by descending execution, then microbatch by microbatch,
// whatever the order of arrival (§4.6).
#include "server/gradient_accumulator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include "smp/error.h"

namespace smp::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class GradientAccumulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    weight_.register_hook(
        [this](const at::Tensor& gradient) { applied_.push_back(gradient.item<double>()); });
    accumulator_.begin(3);
  }
  void TearDown() override { accumulator_.drop(); }

  // An execution of `microbatch` whose backward reaches the weight.
  int record(int microbatch, bool late = false) {
    const int index = accumulator_.open(microbatch, late);
    accumulator_.recorded(microbatch, index, {torch::autograd::impl::gradient_edge(weight_)});
    return index;
  }
  void put(int microbatch, int index, double gradient, bool late = false) {
    const at::NoGradGuard no_grad;
    GradientAccumulator::Pass pass(accumulator_, microbatch, index, late);
    auto leaf = torch::autograd::impl::gradient_edge(weight_).function;
    pass.put(static_cast<torch::autograd::AccumulateGrad&>(*leaf),
             {at::full({}, gradient, at::kDouble)});
  }
  void put_and_close(int microbatch, int index, double gradient) {
    put(microbatch, index, gradient);
    accumulator_.close(microbatch, index);
  }

  at::Tensor weight_ = at::zeros({}, at::kDouble).requires_grad_();
  std::vector<double> applied_;  // what the leaf's hook saw
  GradientAccumulator accumulator_{[this](const at::Tensor& parameter) {
    if (refuse_) throw UsageError("foreign");
    EXPECT_TRUE(parameter.is_same(weight_));
  }};
  bool refuse_ = false;
};

TEST_F(GradientAccumulatorTest, TakesMicrobatchesInOrder) {
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    record(microbatch);
    accumulator_.mark_forward_done(microbatch);
  }
  put_and_close(2, 0, 4);
  put_and_close(1, 0, 2);
  EXPECT_THAT(applied_, IsEmpty());
  EXPECT_EQ(accumulator_.waiting_bytes(), 2 * sizeof(double));
  put_and_close(0, 0, 1);
  EXPECT_THAT(applied_, ElementsAre(1, 2, 4));
  EXPECT_EQ(weight_.grad().item<double>(), 7);
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  EXPECT_EQ(accumulator_.most_waiting_bytes(), 2 * sizeof(double));
}

TEST_F(GradientAccumulatorTest, SumsAMicrobatchFromItsLastExecutionToItsFirst) {
  record(0);
  record(0);
  record(0);
  accumulator_.mark_forward_done(0);
  // In this order the sum is 1; in order of arrival it would be 0.
  put_and_close(0, 0, 1);
  put_and_close(0, 2, 1e30);
  EXPECT_THAT(applied_, IsEmpty());
  put_and_close(0, 1, -1e30);
  EXPECT_THAT(applied_, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, WaitsForTheForwardToEnd) {
  const int index = record(0);
  put_and_close(0, index, 1);
  EXPECT_THAT(applied_, IsEmpty());
  accumulator_.mark_forward_done(0);
  accumulator_.settle();
  EXPECT_THAT(applied_, ElementsAre(1));
}

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatCannotReachTheParameter) {
  auto other = at::zeros({}, at::kDouble).requires_grad_();
  const int elsewhere = accumulator_.open(0, false);
  accumulator_.recorded(0, elsewhere, {torch::autograd::impl::gradient_edge(other)});
  const int index = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(1, index, 3);
  EXPECT_THAT(applied_, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, DoesNotWaitForExecutionsThatWereReleased) {
  const int released = record(0);
  const int index = record(1);
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  put_and_close(1, index, 3);
  EXPECT_THAT(applied_, IsEmpty());
  accumulator_.mark_closed(0, released);
  accumulator_.settle();
  EXPECT_THAT(applied_, ElementsAre(3));
}

TEST_F(GradientAccumulatorTest, AddsLateContributionsLast) {
  const int late = record(0, true);
  put(0, late, 8, true);
  const int index = record(0);
  for (int microbatch = 0; microbatch < 3; ++microbatch) {
    accumulator_.mark_microbatch_done(microbatch);
  }
  put_and_close(0, index, 1);
  EXPECT_THAT(applied_, ElementsAre(1));
  accumulator_.finish();
  EXPECT_THAT(applied_, ElementsAre(1, 8));
}

TEST_F(GradientAccumulatorTest, RefusesGradientsThatTheGuardRefuses) {
  refuse_ = true;
  EXPECT_THROW(put(0, record(0), 1), UsageError);
}

TEST_F(GradientAccumulatorTest, ForgetsAFailedStep) {
  const int index = record(1);
  put(1, index, 5);
  accumulator_.drop();
  EXPECT_EQ(accumulator_.waiting_bytes(), 0u);
  accumulator_.mark_closed(1, index);  // a message of the failed step
  accumulator_.begin(1);
  const int next = record(0);
  accumulator_.mark_forward_done(0);
  put_and_close(0, next, 2);
  EXPECT_THAT(applied_, ElementsAre(2));
  EXPECT_EQ(weight_.grad().item<double>(), 2);
}

}  // namespace
}  // namespace smp::server
