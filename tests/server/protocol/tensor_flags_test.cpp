// Flags of the tensors of a message, below and above the number that needs no memory.
#include "server/protocol/tensor_flags.h"

#include <gtest/gtest.h>

#include <vector>

namespace smp::server {
namespace {

TEST(TensorFlags, KeepsEveryFlagInItsPlace) {
  TensorFlags flags;
  std::vector<bool> expected;
  for (std::size_t i = 0; i < 200; ++i) {
    expected.push_back(i % 3 == 0 || i % 7 == 0);
    flags.push_back(expected.back());
    ASSERT_EQ(flags.size(), i + 1);
  }
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(flags[i], expected[i]) << i;
}

TEST(TensorFlags, AnyFindsTheOnlyOne) {
  for (const std::size_t only : {0u, 1u, 63u, 64u, 65u, 99u}) {
    TensorFlags flags;
    for (std::size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(flags.any(), i > only);
      flags.push_back(i == only);
    }
    EXPECT_TRUE(flags.any());
  }
}

TEST(TensorFlags, EqualityMindsNumberAndValues) {
  TensorFlags left, right;
  EXPECT_EQ(left, right);
  for (int i = 0; i < 70; ++i) {
    left.push_back(false);
    EXPECT_NE(left, right) << "another number of flags";
    right.push_back(false);
    EXPECT_EQ(left, right);
  }
  left.push_back(true);
  right.push_back(false);
  EXPECT_NE(left, right);
}

TEST(TensorFlags, TheLastOnesCanBeForgotten) {
  for (const std::size_t kept : {0u, 1u, 63u, 64u, 65u, 99u, 100u}) {
    TensorFlags flags, expected;
    for (std::size_t i = 0; i < 100; ++i) {
      flags.push_back(i % 3 == 0);
      if (i < kept) expected.push_back(i % 3 == 0);
    }
    flags.truncate(kept);
    EXPECT_EQ(flags, expected) << kept;
  }
}

}  // namespace
}  // namespace smp::server
