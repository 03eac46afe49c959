// Learning rates against those of Python's torch 2.13, and a schedule that goes on.
#include "smp/recipe/lr_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "support/refusal.h"

namespace smp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double kPeak = 3e-4;

torch::optim::SGD one_group(double rate = kPeak) {
  return torch::optim::SGD({torch::zeros({2})}, torch::optim::SGDOptions(rate));
}

std::vector<double> rates(const LrScheduleOptions& options, std::size_t steps) {
  auto optimizer = one_group();
  LrSchedule schedule(optimizer, options);
  std::vector<double> rates;
  for (std::size_t i = 0; i < steps; ++i) {
    rates.push_back(optimizer.param_groups()[0].options().get_lr());
    schedule.step();
  }
  return rates;
}

void expect_near(const std::vector<double>& rates, const std::vector<double>& expected) {
  ASSERT_EQ(rates.size(), expected.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(rates[i], expected[i], 1e-15 * kPeak + 1e-14 * expected[i]) << "step " << i;
  }
}

/// SequentialLR(LinearLR(start_factor=0.2, total_iters=5), CosineAnnealingLR(T_max=12,
/// eta_min=3e-5)).
TEST(LrSchedule, CosineIsPythons) {
  expect_near(
      rates({.warmup_steps = 5, .warmup_start = 0.2, .decay_steps = 12}, 18),
      {5.9999999999999995e-05, 0.000108, 0.000156, 0.000204, 0.000252, 0.0003,
       0.0002953999865490242, 0.00028191342951089924, 0.0002604594154601839, 0.00023249999999999999,
       0.0001999405710888403, 0.000165, 0.00013005942891115973, 9.750000000000004e-05,
       6.95405845398161e-05, 4.8086570489100784e-05, 3.4600013450975794e-05, 3e-05});
}

/// With ConstantLR(factor=1, total_iters=3) in between; then it stays at the floor.
TEST(LrSchedule, HoldsItsPeakAndItsFloor) {
  expect_near(
      rates({.warmup_steps = 5, .warmup_start = 0.2, .constant_steps = 3, .decay_steps = 12}, 24),
      {5.9999999999999995e-05,
       0.000108,
       0.000156,
       0.000204,
       0.000252,
       0.0003,
       0.0003,
       0.0003,
       0.0003,
       0.0002953999865490242,
       0.0002819134295108992,
       0.0002604594154601839,
       0.00023249999999999999,
       0.0001999405710888403,
       0.000165,
       0.0001300594289111597,
       9.750000000000003e-05,
       6.954058453981609e-05,
       4.808657048910077e-05,
       3.4600013450975794e-05,
       3e-05,
       3e-05,
       3e-05,
       3e-05});
}

/// LinearLR(start_factor=1/3, total_iters=3), then LinearLR(1, end_factor=0.25, total_iters=7).
TEST(LrSchedule, LineIsPythons) {
  expect_near(rates({.warmup_steps = 3,
                     .warmup_start = 1.0 / 3,
                     .decay = LrDecay::kLinear,
                     .decay_steps = 7,
                     .floor = 0.25},
                    14),
              {9.999999999999999e-05, 0.00016666666666666666, 0.0002333333333333333, 0.0003,
               0.00026785714285714287, 0.00023571428571428574, 0.00020357142857142858,
               0.00017142857142857143, 0.0001392857142857143, 0.00010714285714285714, 7.5e-05,
               7.5e-05, 7.5e-05, 7.5e-05});
}

TEST(LrSchedule, ConstantNeedsNoLength) {
  expect_near(rates({.warmup_steps = 2, .decay = LrDecay::kConstant}, 4), {0, 1.5e-4, 3e-4, 3e-4});
}

/// An empty group, as a rank has that owns none of its parameters, keeps its place.
TEST(LrSchedule, GroupsHaveTheirOwnPeaks) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{torch::zeros({2})},
                      std::make_unique<torch::optim::AdamWOptions>(1e-3));
  groups.emplace_back(std::vector<torch::Tensor>{},
                      std::make_unique<torch::optim::AdamWOptions>(1e-2));
  torch::optim::AdamW optimizer(groups);
  LrSchedule schedule(optimizer, {.warmup_steps = 4, .decay = LrDecay::kConstant});
  schedule.step();
  EXPECT_THAT(schedule.last_lr(), testing::ElementsAre(2.5e-4, 2.5e-3));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 2.5e-3);
}

/// A job that goes on has the rates of one that was never stopped, though its optimizer comes with
/// the rate of the step before, and its decay may be made longer.
TEST(LrSchedule, GoesOnWhereItStopped) {
  const LrScheduleOptions options{.warmup_steps = 3, .decay_steps = 10};
  const auto whole = rates(options, 12);
  auto before = one_group();
  LrSchedule stopped(before, options);
  for (int i = 0; i < 5; ++i) stopped.step();
  auto after = one_group(stopped.last_lr()[0]);
  LrSchedule schedule(after, options);
  schedule.load_state_dict(stopped.state_dict());
  EXPECT_EQ(schedule.steps(), 5);
  for (std::size_t step = 5; step < whole.size(); ++step) {
    EXPECT_EQ(schedule.last_lr()[0], whole[step]) << step;
    schedule.step();
  }
  LrSchedule longer(after, {.warmup_steps = 3, .decay_steps = 100});
  longer.load_state_dict(stopped.state_dict());
  EXPECT_GT(longer.last_lr()[0], stopped.last_lr()[0]);
}

TEST(LrSchedule, RefusesWhatMakesNoSense) {
  EXPECT_THAT(refusal([] { lr_factor({}, 0); }), HasSubstr("decay_steps is missing"));
  EXPECT_THAT(refusal([] { lr_factor({.decay_steps = 1}, -1); }), HasSubstr("no step -1"));
  EXPECT_THAT(refusal([] { lr_factor({.warmup_steps = -1, .decay_steps = 1}, 0); }),
              HasSubstr("-1"));
  EXPECT_THAT(refusal([] { lr_factor({.decay_steps = 1, .floor = 3e1}, 0); }),
              AllOf(HasSubstr("floor (30)"), HasSubstr("factors")));
  auto optimizer = one_group();
  LrSchedule schedule(optimizer, {.decay_steps = 4});
  const StateDict two_groups{{"last_epoch", torch::full({}, 2, torch::kLong)},
                             {"base_lrs", torch::ones({2}, torch::kDouble)}};
  EXPECT_THAT(refusal([&] { schedule.load_state_dict(two_groups); }),
              HasSubstr("of 2 groups, and the optimizer has 1"));
  EXPECT_EQ(schedule.steps(), 0);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({1})}));
  EXPECT_THAT(refusal([&] { schedule.step(); }), HasSubstr("has 2 groups, and had 1"));
}

}  // namespace
}  // namespace smp
