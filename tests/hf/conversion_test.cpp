// What is lost in another dtype is counted over all parts in which values are converted.
#include "hf/conversion.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <cmath>

#include "support/refusal.h"

namespace smp::hf {
namespace conversion_test {

using testing::HasSubstr;

constexpr std::int64_t kMany = (1 << 19) + 5;  // several parts, and a short one

TEST(Conversion, CountsLossesOfAllParts) {
  auto values = torch::ones({kMany}, torch::kDouble);
  values[0] = 1 + 1e-3;  // to 1
  values[kMany - 1] = 1 + 1e-4;
  Losses losses;
  const auto half = converted(values.view({1, kMany}), torch::kBFloat16, "x", losses);
  EXPECT_EQ(half.sizes(), (std::vector<std::int64_t>{1, kMany}));
  EXPECT_TRUE(half.eq(1).all().item<bool>());
  EXPECT_EQ(losses.rounded, 2);
  EXPECT_NEAR(losses.largest_change, 1e-3, 1e-5) << "of the first part, not of the last";
  (void)converted(torch::tensor({1.0, 3.0}, torch::kDouble), torch::kFloat, "y", losses);
  EXPECT_EQ(losses.rounded, 2) << "nothing was lost";
}

TEST(Conversion, RefusesWhatBecomesInfiniteInTheLastPart) {
  auto values = torch::ones({kMany});
  values[kMany - 1] = -7e4;
  Losses losses;
  EXPECT_THAT(refusal([&] { (void)converted(values, torch::kHalf, "x", losses); }),
              HasSubstr("Half cannot hold -70000 of \"x\""));
  values[kMany - 1] = -INFINITY;
  EXPECT_EQ(converted(values, torch::kHalf, "x", losses)[kMany - 1].item<double>(), -INFINITY);
  EXPECT_EQ(losses.rounded, 0);
}

TEST(Conversion, TakesEightBits) {
  Losses losses;
  for (const auto type : {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2, torch::kFloat8_e8m0fnu}) {
    const auto values = torch::tensor({1.0, 4.0}).to(type);
    const auto wide = converted(values, torch::kBFloat16, "x", losses);
    EXPECT_TRUE(wide.equal(torch::tensor({1.0, 4.0}).to(torch::kBFloat16))) << type;
  }
  EXPECT_EQ(losses.rounded, 0);
  const auto large = torch::tensor({65536.0}).to(torch::kFloat8_e8m0fnu);
  EXPECT_THAT(refusal([&] { (void)converted(large, torch::kHalf, "x", losses); }),
              HasSubstr("Half cannot hold 65536 of \"x\""));
}

}  // namespace conversion_test
}  // namespace smp::hf
