// What an execution has switched when it leaves the thread is its own, whoever runs next.
#include "server/modules/settings_board.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace smp::server {
namespace settings_board_test {

class SettingsBoardTest : public ::testing::Test {
 protected:
  SettingsBoardTest() {
    board_.attach(*model_);
    board_.begin_step();
    one_ = two_ = board_.base();
  }
  torch::nn::Module& part(std::size_t index) { return *model_[index]; }
  bool trains(std::size_t index) { return part(index).is_training(); }
  at::Tensor weight(std::size_t index) { return part(index).named_parameters()["weight"]; }

  torch::nn::Sequential model_{torch::nn::Linear(2, 2), torch::nn::Linear(2, 2)};
  SettingsBoard board_;
  SettingsBoard::View one_, two_;
};

TEST_F(SettingsBoardTest, WhatOneSwitchedIsGoneWhileAnotherRuns) {
  board_.resume(one_);
  part(0).eval();
  weight(1).set_requires_grad(false);
  board_.suspend(one_, nullptr);
  board_.resume(two_);
  EXPECT_TRUE(trains(0));
  EXPECT_TRUE(weight(1).requires_grad());
  board_.suspend(two_, nullptr);
  board_.resume(one_);
  EXPECT_FALSE(trains(0));
  EXPECT_FALSE(weight(1).requires_grad());
  EXPECT_EQ(two_, board_.base()) << "it has switched nothing";
}

TEST_F(SettingsBoardTest, WhoGoesOnHimselfFindsWhatHeLeft) {
  board_.resume(one_);
  part(0).eval();
  board_.suspend(one_, nullptr);
  board_.resume(one_);
  EXPECT_FALSE(trains(0));
  board_.note(one_);
  EXPECT_NE(one_, board_.base());
  board_.suspend(one_, nullptr);
  board_.apply(board_.base());
  EXPECT_TRUE(trains(0));
}

TEST_F(SettingsBoardTest, ThreeTakeTurns) {
  auto three = board_.base();
  board_.resume(one_);
  part(0).eval();
  board_.suspend(one_, nullptr);
  board_.resume(two_);
  part(1).eval();
  board_.suspend(two_, nullptr);
  board_.resume(three);
  EXPECT_TRUE(trains(0) && trains(1));
  board_.suspend(three, nullptr);
  board_.resume(two_);
  EXPECT_TRUE(trains(0) && !trains(1));
  part(1).train();
  board_.suspend(two_, nullptr);
  board_.resume(one_);
  EXPECT_TRUE(!trains(0) && trains(1));
}

TEST_F(SettingsBoardTest, OfAPartOnlyItsOwnFlagsAreLookedAt) {
  const auto& second = board_.flags().subtree(part(1));
  board_.resume(one_);
  part(0).eval();
  part(1).eval();
  board_.suspend(one_, &second);
  board_.resume(two_);
  EXPECT_TRUE(trains(1));
  EXPECT_FALSE(trains(0)) << "nobody has seen it";
}

TEST_F(SettingsBoardTest, AParameterThatNeverHadAGradientMayGetOne) {
  torch::nn::Linear frozen(2, 2);
  auto bias = at::zeros({2});
  frozen->bias = frozen->register_parameter("late", bias, /*requires_grad=*/false);
  board_.attach(*frozen);
  board_.begin_step();
  one_ = two_ = board_.base();
  board_.resume(one_);
  bias.set_requires_grad(true);
  board_.suspend(one_, nullptr);
  board_.resume(two_);
  EXPECT_FALSE(bias.requires_grad());
  board_.suspend(two_, nullptr);
  board_.resume(one_);
  EXPECT_TRUE(bias.requires_grad());
  board_.suspend(one_, nullptr);
  board_.resume(two_);
  bias.set_requires_grad(true);
  board_.note(two_);
  EXPECT_NE(two_, board_.base()) << "as any other one's, now that it has been on once";
}

TEST_F(SettingsBoardTest, AStepBeginsWithWhatTheModulesSay) {
  board_.resume(one_);
  board_.suspend(one_, nullptr);
  part(0).eval();
  board_.begin_step();
  board_.apply(board_.base());
  EXPECT_FALSE(trains(0));
  EXPECT_TRUE((*one_)[1] != 0) << "an execution of an earlier step is left alone";
}

TEST_F(SettingsBoardTest, OneModelEndsAndAnotherHasItsFlags) {
  torch::nn::Sequential other{torch::nn::Linear(2, 2)};
  board_.attach(*other);
  board_.begin_step();
  auto view = board_.base();
  board_.detach(*model_);
  part(0).eval();
  board_.note(view);
  EXPECT_EQ(view, board_.base()) << "switches of a model that has ended count for nothing";
  other->eval();
  board_.note(view);
  EXPECT_NE(view, board_.base());
}

}  // namespace settings_board_test
}  // namespace smp::server
