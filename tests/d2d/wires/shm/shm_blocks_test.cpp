// Blocks come back, in any order, and nobody gets those that are kept for others.
#include "d2d/wires/shm/shm_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/memory/shared_memory.h"

namespace smp::d2d {
namespace shm_blocks_test {

using testing::ElementsAre;
using testing::IsEmpty;

/// Of rank 0 of three. 16 blocks are kept for each peer.
class ShmBlocksTest : public testing::Test {
 protected:
  std::vector<std::uint32_t> take_all(std::size_t to) {
    std::vector<std::uint32_t> taken;
    while (const auto block = blocks_.take(to)) taken.push_back(*block);
    return taken;
  }
  void give_back(std::uint32_t block) { segment_.in_use(block).store(0); }
  std::vector<Token> tokens_that_are_back() {
    std::vector<Token> tokens;
    blocks_.take_back_offered([&](Token token) { tokens.push_back(token); });
    return tokens;
  }

  HostShmOptions options_{.ring_lines = 16, .block_bytes = 4096, .blocks = 64};
  HostShmSegment segment_{*base::SharedMemory::make(HostShmSegment::bytes_for(3, options_)), 3,
                          options_};
  ShmBlocks blocks_{segment_, options_.blocks, 3, 0};
};

TEST_F(ShmBlocksTest, KeepsSomeForEachPeer) {
  EXPECT_EQ(take_all(1).size(), 48u);
  EXPECT_EQ(take_all(2).size(), 16u);
  EXPECT_THAT(take_all(1), IsEmpty());
}

TEST_F(ShmBlocksTest, TakesBackInAnyOrder) {
  const auto taken = take_all(1);
  give_back(taken[7]);
  give_back(taken[5]);
  EXPECT_THAT(take_all(1), testing::UnorderedElementsAre(taken[5], taken[7]));
}

TEST_F(ShmBlocksTest, TellsWhatHasLeftWhenItsBlockIsBack) {
  const auto first = blocks_.take(1, Token{7});
  const auto second = blocks_.take(2, Token{8});
  ASSERT_TRUE(first && second);
  EXPECT_THAT(tokens_that_are_back(), IsEmpty());
  give_back(*second);
  EXPECT_THAT(tokens_that_are_back(), ElementsAre(8));
  EXPECT_THAT(tokens_that_are_back(), IsEmpty());
  EXPECT_EQ(blocks_.take(2), second) << "the last that came back may be in a cache";
}

}  // namespace shm_blocks_test
}  // namespace smp::d2d
