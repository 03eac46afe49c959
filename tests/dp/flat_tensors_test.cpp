// Tensors as one row of elements and back.
#include "dp/flat_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace smp::dp {
namespace flat_tensors_test {

TEST(FlatTensors, StandBehindEachOther) {
  const auto a = at::arange(6, at::kDouble).view({2, 3});
  const auto b = at::full({}, 9.0, at::kDouble);
  EXPECT_TRUE(at::equal(flattened({a, b}), at::tensor({0., 1., 2., 3., 4., 5., 9.}, at::kDouble)));
}

TEST(FlatTensors, ComeBackIntoTheMemoryAndStridesOfTensors) {
  const auto columns = at::zeros({3, 2}, at::kDouble).t();
  const auto scalar = at::zeros({}, at::kDouble);
  const auto* memory = columns.const_data_ptr();
  unflatten_into({columns, scalar}, at::arange(7, at::kDouble));
  EXPECT_TRUE(at::equal(columns, at::arange(6, at::kDouble).view({2, 3})));
  EXPECT_EQ(columns.const_data_ptr(), memory);
  EXPECT_EQ(columns.stride(0), 1);
  EXPECT_EQ(scalar.item<double>(), 6);
}

TEST(FlatTensors, OfALeafThatNeedsGradientsRecordNothing) {
  const auto leaf = at::ones({2}).requires_grad_();
  EXPECT_FALSE(flattened({leaf}).requires_grad());
  unflatten_into({leaf}, at::zeros({2}));
  EXPECT_TRUE(leaf.is_leaf());
  EXPECT_EQ(leaf.sum().item<float>(), 0);
}

}  // namespace flat_tensors_test
}  // namespace smp::dp
