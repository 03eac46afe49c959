// Clocks that disagree, and a group that has to find out by how much.
#include "api/rank/clock_offset.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace clock_offset_test {

using base::Nanoseconds;

TEST(ClockOffset, IsFoundWithinItsError) {
  const std::vector<Nanoseconds> skew{0, 5 * base::kSecond, -3'000'000'000'000, 17};
  std::vector<ClockOffset> found(4);
  on_ranks(4, [&] {
    const auto own = static_cast<std::size_t>(rank());
    const base::SteadyClock clock;
    found[own] = clock_offset(Rank::current().groups().of(Group::kPp),
                              [&] { return clock.now() + skew[own]; }, {true, false, false, false});
  });
  EXPECT_EQ(found[0].offset, 0);
  EXPECT_EQ(found[0].error, 0);
  for (std::size_t other = 1; other < 4; ++other) {
    EXPECT_LE(std::llabs(found[other].offset - skew[other]), found[other].error) << other;
    EXPECT_GT(found[other].error, 0);
    EXPECT_LT(found[other].error, base::kSecond);
  }
}

TEST(ClockOffset, IsNoneWhereAClockIsShared) {
  on_ranks(3, [&] {
    const auto found =
        clock_offset(Rank::current().groups().of(Group::kPp),
                     []() -> Nanoseconds { return std::rand(); }, {true, true, true});
    EXPECT_EQ(found.offset, 0);
    EXPECT_EQ(found.error, 0);
  });
}

}  // namespace clock_offset_test
}  // namespace smp
