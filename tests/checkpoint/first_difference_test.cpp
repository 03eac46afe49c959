// The element in which two tensors differ, against a search by hand.
#include "checkpoint/first_difference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace smp::checkpoints {
namespace first_difference_test {

TEST(FirstDifference, IsFoundInEveryType) {
  for (const auto type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kUInt16,
        at::kUInt64, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz}) {
    const auto values = at::arange(24, at::kFloat).reshape({2, 3, 4});
    auto others = values.clone();
    EXPECT_FALSE(first_difference(values.to(type), others.to(type), type)) << type;
    others[1][2][0] = 3;
    others[1][2][3] = 3;
    const auto found = first_difference(values.to(type), others.to(type), type);
    ASSERT_TRUE(found) << type;
    EXPECT_EQ(found->place, (std::vector<std::int64_t>{1, 2, 0})) << type;
    EXPECT_NE(found->second.find('3'), std::string::npos) << type << ' ' << found->second;
    // Layouts do not count.
    const auto turned = others.to(type).transpose(0, 2).contiguous().transpose(0, 2);
    EXPECT_EQ(first_difference(values.to(type), turned, type)->place, found->place);
  }
}

TEST(FirstDifference, IsOfWhatTheValuesBecome) {
  const auto exact = at::full({}, 1. / 3, at::kDouble);
  EXPECT_FALSE(first_difference(exact, exact.to(at::kFloat), at::kFloat));
  EXPECT_FALSE(first_difference(exact.to(at::kFloat), exact, at::kHalf));
  const auto found = first_difference(exact, exact.to(at::kFloat), at::kDouble);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->place.empty());
}

TEST(FirstDifference, IsNoNaNAndNoSignOfZero) {
  const auto values = at::tensor({NAN, 0., INFINITY, 1.});
  auto others = at::tensor({-NAN, -0., INFINITY, 1.});
  EXPECT_FALSE(first_difference(values, others, at::kDouble));
  EXPECT_FALSE(first_difference(at::complex(values, others), at::complex(others, values),
                                at::kComplexDouble));
  others[3] = NAN;
  EXPECT_EQ(first_difference(values, others, at::kDouble)->place, std::vector<std::int64_t>{3});
  EXPECT_EQ(first_difference(others, values, at::kDouble)->place, std::vector<std::int64_t>{3});
  EXPECT_FALSE(first_difference(at::empty({0, 2}), at::empty({0, 2}), at::kFloat));
}

TEST(FirstDifference, IsFoundBetweenTypesThatLibTorchDoesNotPromote) {
  for (const auto& [first, second] :
       {std::pair(at::kFloat8_e4m3fn, at::kBFloat16),
        std::pair(at::kFloat8_e4m3fn, at::kFloat8_e5m2), std::pair(at::kUInt16, at::kByte),
        std::pair(at::kUInt16, at::kComplexFloat), std::pair(at::kHalf, at::kBFloat16),
        std::pair(at::kLong, at::kFloat)}) {
    const auto type = common_type(first, second);
    const auto values = at::arange(4, at::kFloat);
    EXPECT_FALSE(first_difference(values.to(first), values.to(second), type)) << first << second;
    EXPECT_TRUE(first_difference(values.to(first), (values + 1).to(second), type))
        << first << second;
  }
}

}  // namespace first_difference_test
}  // namespace smp::checkpoints
