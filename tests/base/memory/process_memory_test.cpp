// The memory of a process that takes some and gives it back.
#include "base/memory/process_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace smp::base {
namespace {

constexpr std::size_t kTaken = std::size_t{256} << 20;  // malloc maps as much on its own
constexpr auto kNearly = static_cast<std::int64_t>(kTaken / 10 * 9);

/// @return  what is resident while it is taken
std::int64_t take_and_give_back() {
  const std::vector<char> taken(kTaken, 'x');
  return resident_bytes() + (taken[kTaken / 2] == 'x' ? 0 : 1);
}

TEST(ProcessMemory, CountsWhatIsTakenAndThePeakOfIt) {
  const auto before = resident_bytes();
  ASSERT_GT(before, 1 << 20);
  EXPECT_GT(take_and_give_back(), before + kNearly);
  EXPECT_GT(peak_resident_bytes(), before + kNearly);
}

TEST(ProcessMemory, ForgetsThePeak) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "which keeps freed memory";
#endif
  take_and_give_back();
  forget_peak();
  EXPECT_LT(peak_resident_bytes(), resident_bytes() + kNearly / 2);
}

}  // namespace
}  // namespace smp::base
