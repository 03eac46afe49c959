// Blocks do not overlap, are used again, and memory goes back to the machine.
#include "base/memory/shared_heap.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace smp::base {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Pages of the heap that take memory.
std::size_t resident(const SharedHeap& heap) {
  std::vector<unsigned char> pages(heap.size() / SharedHeap::kPage);
  EXPECT_EQ(::mincore(heap.memory().bytes().data(), heap.size(), pages.data()), 0);
  return static_cast<std::size_t>(std::count_if(
             pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; })) *
         SharedHeap::kPage;
}

TEST(SharedHeap, GivesPagesAndTakesMemoryWhereSomebodyWrites) {
  const auto heap = SharedHeap::make(64 * kMiB);
  ASSERT_TRUE(heap);
  auto* const block = heap->allocate(10'000);
  EXPECT_EQ(heap->offset(block) % SharedHeap::kPage, 0u);
  EXPECT_TRUE(heap->contains(block));
  int elsewhere = 0;
  EXPECT_FALSE(heap->contains(&elsewhere));
  EXPECT_FALSE(heap->contains(nullptr));
  EXPECT_EQ(resident(*heap), 0u);
  std::memset(block, 1, 10'000);
  EXPECT_EQ(resident(*heap), 3 * SharedHeap::kPage);
  EXPECT_EQ(heap->usage().used, 3 * SharedHeap::kPage);
  heap->free(block);
  EXPECT_EQ(heap->usage().used, 0u);
  EXPECT_EQ(heap->usage().kept, 3 * SharedHeap::kPage);
}

TEST(SharedHeap, GivesTheSameMemoryAgain) {
  const auto heap = SharedHeap::make(64 * kMiB);
  std::array<void*, 2> first{heap->allocate(5 * kMiB), heap->allocate(kMiB)};
  for (int round = 0; round < 3; ++round) {
    heap->free(first[0]);
    heap->free(first[1]);
    std::array<void*, 2> again{heap->allocate(5 * kMiB), heap->allocate(kMiB)};
    EXPECT_EQ(again, first);
  }
}

/// What was given back lies before what was not, in one range that is cut between.
TEST(SharedHeap, KnowsWhichSideOfACutTakesMemory) {
  const auto heap = SharedHeap::make(10 * kMiB);
  auto* const first = heap->allocate(3 * kMiB);
  auto* const second = heap->allocate(3 * kMiB);
  auto* const third = heap->allocate(4 * kMiB);
  std::memset(first, 1, 3 * kMiB);
  std::memset(second, 1, 3 * kMiB);
  heap->free(first);
  heap->trim();
  EXPECT_EQ(resident(*heap), 3 * kMiB);
  heap->free(second);
  EXPECT_EQ(heap->allocate(3 * kMiB), first);
  EXPECT_EQ(heap->usage().kept, 3 * kMiB) << "that of the second";
  heap->trim();
  EXPECT_EQ(heap->usage().kept, 0u);
  EXPECT_EQ(resident(*heap), 0u);
  heap->free(first);
  heap->free(third);
}

TEST(SharedHeap, IsFullWhenItIs) {
  const auto heap = SharedHeap::make(4 * kMiB);
  auto* const most = heap->allocate(3 * kMiB);
  EXPECT_EQ(heap->allocate(2 * kMiB), nullptr);
  auto* const rest = heap->allocate(kMiB);
  EXPECT_NE(rest, nullptr);
  EXPECT_EQ(heap->allocate(1), nullptr);
  heap->free(most);
  heap->free(rest);
  EXPECT_NE(heap->allocate(4 * kMiB), nullptr) << "free neighbours are one";
}

/// Beside a list of blocks that a reader can check.
TEST(SharedHeap, BlocksNeverOverlap) {
  const auto heap = SharedHeap::make(64 * kMiB);
  std::mt19937 random(3);
  struct Block {
    unsigned char* start;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  std::size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (blocks.empty() || random() % 100 < 52) {
      const auto bytes = 1 + random() % (random() % 10 == 0 ? 4 * kMiB : 40'000);
      auto* const start = static_cast<unsigned char*>(heap->allocate(bytes));
      if (start == nullptr) {
        ++refused;
        continue;
      }
      blocks.push_back({start, bytes, static_cast<unsigned char>(random())});
      start[0] = start[bytes - 1] = start[bytes / 2] = blocks.back().mark;
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const auto& block = blocks.back();
      ASSERT_EQ(block.start[0], block.mark);
      ASSERT_EQ(block.start[block.bytes - 1], block.mark);
      ASSERT_EQ(block.start[block.bytes / 2], block.mark);
      heap->free(block.start);
      blocks.pop_back();
    }
  }
  EXPECT_GT(refused, 0u) << "it was never full";
  EXPECT_LT(refused, 5'000u);
  for (const auto& block : blocks) heap->free(block.start);
  EXPECT_EQ(heap->usage().used, 0u);
  EXPECT_NE(heap->allocate(64 * kMiB), nullptr);
}

TEST(SharedHeap, KeepsWhatRecentStepsNeededAndNoMore) {
  const auto heap = SharedHeap::make(2'000 * kMiB);
  auto* const large = heap->allocate(2 * SharedHeap::kSlack);
  std::memset(large, 1, 2 * SharedHeap::kSlack);
  heap->free(large);
  EXPECT_EQ(resident(*heap), 2 * SharedHeap::kSlack) << "the next step may want it";
  for (int i = 0; i < 20'000; ++i) heap->free(heap->allocate(1));
  EXPECT_LE(resident(*heap), SharedHeap::kSlack);
  EXPECT_LE(heap->usage().kept, SharedHeap::kSlack);
}

TEST(SharedHeap, GivesAllFreeMemoryBackWhenAsked) {
  const auto heap = SharedHeap::make(64 * kMiB);
  auto* const kept = heap->allocate(kMiB);
  auto* const freed = heap->allocate(2 * kMiB);
  std::memset(kept, 1, kMiB);
  std::memset(freed, 1, 2 * kMiB);
  heap->free(freed);
  heap->trim();
  EXPECT_EQ(resident(*heap), kMiB);
  EXPECT_EQ(heap->usage().kept, 0u);
}

TEST(SharedHeap, AForkedChildHasItsOwn) {
  const auto heap = SharedHeap::make(64 * kMiB);
  auto* const block = static_cast<char*>(heap->allocate(100));
  block[0] = 'a';
  heap->before_fork();
  const auto child = ::fork();
  if (child == 0) {
    heap->after_fork_in_child();
    bool right = block[0] == 'a';
    block[0] = 'b';
    auto* const other = static_cast<char*>(heap->allocate(100));
    other[0] = 'c';
    for (int i = 0; i < 2'000; ++i) heap->free(heap->allocate(50 * kMiB));
    ::_exit(right && block[0] == 'b' && other[0] == 'c' ? 0 : 1);
  }
  heap->after_fork_in_parent();
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(block[0], 'a');
  EXPECT_EQ(static_cast<char*>(heap->allocate(100))[0], 0);
}

TEST(SharedHeap, AForkedChildOfAForkedChildHasWhatThatOneWrote) {
  const auto heap = SharedHeap::make(64 * kMiB);
  auto* const block = static_cast<char*>(heap->allocate(100));
  block[0] = 'a';
  const auto in_child = [&](const std::function<bool()>& is_right) {
    heap->before_fork();
    const auto child = ::fork();
    if (child == 0) {
      heap->after_fork_in_child();
      ::_exit(is_right() ? 0 : 1);
    }
    heap->after_fork_in_parent();
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  EXPECT_TRUE(in_child([&] {
    block[0] = 'b';
    const bool grandchild = in_child([&] {
      const bool right = block[0] == 'b';
      block[0] = 'c';
      return right && block[0] == 'c';
    });
    return grandchild && block[0] == 'b';
  }));
  EXPECT_EQ(block[0], 'a');
}

TEST(SharedHeap, NeedsAddressSpace) { EXPECT_EQ(SharedHeap::make(std::size_t{1} << 60), nullptr); }

}  // namespace
}  // namespace smp::base
