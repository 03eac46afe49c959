// float32 values behind numbers of 16 bits: kept where nobody has written since.
#include "precision/wide_values.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace smp::precision {
namespace wide_values_test {

TEST(WideValues, AreThoseThatWereKeptWhereTheyRoundToTheNumbers) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto kept = torch::tensor({1.0001f, 2.0001f, 3.0001f});
    auto rounded = kept.to(dtype);
    rounded[1] = 5;
    const auto values = wide_values(kept, rounded);
    EXPECT_TRUE(torch::equal(values, torch::tensor({1.0001f, 5.f, 3.0001f}))) << values;
  }
}

TEST(WideValues, AreTheNumbersWhereNothingOfTheirShapeWasKept) {
  const auto rounded = torch::tensor({1.f, 2.f, 3.f}).to(torch::kBFloat16);
  const auto plain = rounded.to(torch::kFloat);
  EXPECT_TRUE(torch::equal(wide_values({}, rounded), plain));
  for (const std::int64_t size : {1, 4}) {
    EXPECT_TRUE(torch::equal(wide_values(torch::full({size}, 1.0001f), rounded), plain)) << size;
  }
}

}  // namespace wide_values_test
}  // namespace smp::precision
