// Which frames over libfabric a rank of the job may have written.
#include "d2d/wires/ofi/ofi_frame.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace smp::d2d {
namespace ofi_frame_test {

/// As rank 0 of three reads a frame of `bytes` bytes before its trailer.
bool is_taken(const OfiTrailer& trailer, std::size_t bytes) {
  std::vector<std::byte> frame(bytes + sizeof trailer);
  std::memcpy(frame.data() + bytes, &trailer, sizeof trailer);
  return makes_sense(frame, 3, 0);
}

constexpr std::size_t kId = sizeof(TransferId), kGrant = sizeof(OfiGrant);

TEST(OfiFrame, HoldsWhatItCounts) {
  EXPECT_TRUE(is_taken({.message_bytes = 5, .source = 1}, 5));
  EXPECT_TRUE(is_taken({.message_bytes = 50, .source = 2, .received = 2, .last = 0}, 5 + 2 * kId));
  EXPECT_FALSE(is_taken({.message_bytes = 50, .source = 1, .received = 2}, 2 * kId - 1));
  EXPECT_FALSE(is_taken({.message_bytes = 4, .source = 1}, 5)) << "longer than its message";
  EXPECT_FALSE(is_taken({.message_bytes = kLongestOfiMessage + 1, .source = 1}, 5));
  EXPECT_TRUE(is_taken({.message_bytes = kLongestOfiMessage, .source = 1}, 5));
  EXPECT_FALSE(is_taken({.message_bytes = 5, .source = 1, .last = 2}, 5));
  EXPECT_FALSE(makes_sense(std::vector<std::byte>(sizeof(OfiTrailer) - 1), 3, 0));
}

TEST(OfiFrame, ComesFromAnotherRankOfTheJob) {
  EXPECT_FALSE(is_taken({.message_bytes = 5, .source = 0}, 5));
  EXPECT_FALSE(is_taken({.message_bytes = 5, .source = 3}, 5));
}

TEST(OfiFrame, OfAnotherKindHasNoControlBytes) {
  for (const auto kind : {OfiFrameKind::kGoodbye, OfiFrameKind::kNothing}) {
    EXPECT_TRUE(is_taken({.source = 1, .received = 1, .kind = kind}, kId));
    EXPECT_FALSE(is_taken({.source = 1, .kind = kind}, 1));
  }
  EXPECT_TRUE(is_taken({.source = 1, .kind = OfiFrameKind::kGrants}, 2 * kGrant));
  EXPECT_FALSE(is_taken({.source = 1, .kind = OfiFrameKind::kGrants}, kGrant + 1));
  EXPECT_FALSE(is_taken({.source = 1, .kind = OfiFrameKind::kGrants}, 0));
  EXPECT_FALSE(is_taken({.source = 1, .received = 1, .kind = OfiFrameKind::kGrants}, kGrant + kId));
  EXPECT_FALSE(is_taken({.source = 1, .kind = static_cast<OfiFrameKind>(4)}, 0));
}

}  // namespace ofi_frame_test
}  // namespace smp::d2d
