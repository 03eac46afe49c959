// Leaves have dense numbers; those of placed parameters last.
#include "server/sums/parameter_numbers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace smp::server {
namespace {

std::vector<at::Tensor> some_leaves(int count) {
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < count; ++i) leaves.push_back(at::zeros({1}).requires_grad_());
  return leaves;
}

TEST(ParameterNumbersTest, AreDenseAndStay) {
  ParameterNumbers numbers;
  const auto leaves = some_leaves(1000);
  for (std::size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(numbers.place(leaves[i]), i);
  for (std::size_t i = 0; i < leaves.size(); ++i) EXPECT_EQ(numbers.of(leaves[i]), i);
  EXPECT_EQ(numbers.place(leaves[7]), 7u);
  EXPECT_EQ(numbers.placed(), 1000u);
  EXPECT_EQ(numbers.size(), 1000u);
}

TEST(ParameterNumbersTest, AreByIdentity) {
  ParameterNumbers numbers;
  const auto weight = at::zeros({1}).requires_grad_();
  const auto same = weight;            // NOLINT: a second handle is the point
  const auto other = weight.detach();  // the same storage
  EXPECT_EQ(numbers.place(weight), numbers.of(same));
  EXPECT_NE(numbers.of(weight), numbers.of(other));
}

TEST(ParameterNumbersTest, OfUnknownLeavesLastUntilTheyAreForgotten) {
  ParameterNumbers numbers;
  const auto placed = some_leaves(3);
  const auto made = some_leaves(100);
  for (const auto& leaf : placed) numbers.place(leaf);
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(numbers.of(made[i]), 3 + i);
    for (std::size_t i = 0; i < made.size(); ++i) EXPECT_EQ(numbers.of(made[i]), 3 + i);
    numbers.forget_unplaced();
    EXPECT_EQ(numbers.size(), 3u);
  }
  for (std::size_t i = 0; i < placed.size(); ++i) EXPECT_EQ(numbers.of(placed[i]), i);
}

TEST(ParameterNumbersTest, OfPlacedParametersComeBeforeThoseOfUnknownLeaves) {
  ParameterNumbers numbers;
  const auto leaves = some_leaves(3);
  numbers.place(leaves[0]);
  numbers.of(leaves[2]);
  EXPECT_EQ(numbers.place(leaves[1]), 1u);
  EXPECT_EQ(numbers.of(leaves[2]), 2u);
  EXPECT_EQ(numbers.placed(), 2u);
  numbers.clear();
  EXPECT_EQ(numbers.size(), 0u);
  EXPECT_EQ(numbers.of(leaves[2]), 0u);
}

}  // namespace
}  // namespace smp::server
