// Numbers that are skipped leave the generator exactly as numbers that are drawn.
#include "base/random_jump.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace {

void expect_same(const at::mt19937& ours, const at::mt19937& drawn) {
  EXPECT_EQ(ours.data().left_, drawn.data().left_);
  EXPECT_EQ(ours.data().next_, drawn.data().next_);
  EXPECT_TRUE(ours.data().state_ == drawn.data().state_);
}

at::mt19937 drawn(at::mt19937 engine, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) engine();
  return engine;
}

at::mt19937 skipped(at::mt19937 engine, std::uint64_t count) {
  skip_numbers(engine, count);
  return engine;
}

TEST(SkipNumbers, EqualsDrawingThemFromAnySeed) {
  const at::mt19937 fresh(42);
  for (const std::uint64_t before : {0, 1, 100, 623, 624, 625, 2000}) {
    const auto start = drawn(fresh, before);
    for (const std::uint64_t count : {0, 1, 2, 523, 524, 525, 623, 624, 625, 1248, 100000}) {
      SCOPED_TRACE(testing::Message() << count << " after " << before);
      expect_same(skipped(start, count), drawn(start, count));
    }
  }
}

TEST(SkipNumbers, JumpsFarExactly) {
  for (const std::uint64_t before : {0, 77}) {
    const auto start = drawn(at::mt19937(7), before);
    const std::uint64_t far = 45'000'000 + before;
    expect_same(skipped(start, far), drawn(start, far));
  }
}

TEST(SkipNumbers, AddsUp) {
  const std::uint64_t far = 123'456'789'012'345;
  const at::mt19937 start(3);
  expect_same(skipped(skipped(start, far), 2 * far + 5), skipped(start, 3 * far + 5));
}

}  // namespace
}  // namespace smp::base
