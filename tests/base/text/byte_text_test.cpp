// Amounts of memory in words: the unit changes at a gibibyte.
#include "base/text/byte_text.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace byte_text_test {

TEST(ByteText, HasThreeDigitsAndAUnit) {
  constexpr std::int64_t kMiB = 1 << 20, kGiB = 1 << 30;
  EXPECT_EQ(byte_text(0), "0 MiB");
  EXPECT_EQ(byte_text(kMiB / 2), "0.5 MiB");
  EXPECT_EQ(byte_text(12 * kMiB), "12 MiB");
  EXPECT_EQ(byte_text(kGiB - kMiB), "1.02e+03 MiB");
  EXPECT_EQ(byte_text(kGiB), "1 GiB");
  EXPECT_EQ(byte_text(24'000 * kMiB), "23.4 GiB");
}

}  // namespace byte_text_test
}  // namespace smp::base
