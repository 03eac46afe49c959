// Small tensors get memory that small tensors left.
#include "d2d/lend/small_blocks.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "d2d/lend/heap_allocator.h"

namespace smp::d2d {
namespace small_blocks_test {

class SmallBlocksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SmallBlocks::keeps_any()) GTEST_SKIP() << "a sanitizer is to see what is freed";
  }
};

TEST(SmallBlocks, EverySizeHasRoomForItsBytes) {
  for (std::size_t bytes = 1; bytes <= SmallBlocks::kMost; ++bytes) {
    const int size = SmallBlocks::size_for(bytes);
    ASSERT_GE(size, 0);
    ASSERT_LT(size, SmallBlocks::kSizes);
    ASSERT_GE(SmallBlocks::bytes_of(size), bytes);
    ASSERT_TRUE(size == 0 || SmallBlocks::bytes_of(size - 1) < bytes) << bytes;
  }
}

TEST_F(SmallBlocksTest, WhatWasGivenLastIsTakenFirst) {
  void* const first = SmallBlocks::take(2);
  void* const second = SmallBlocks::take(2);
  SmallBlocks::give(2, first);
  SmallBlocks::give(2, second);
  EXPECT_EQ(SmallBlocks::take(2), second);
  void* const other_size = SmallBlocks::take(3);
  EXPECT_NE(other_size, first);
  EXPECT_EQ(SmallBlocks::take(2), first);
  SmallBlocks::give(3, other_size);
  SmallBlocks::give(2, first);
  SmallBlocks::give(2, second);
}

TEST_F(SmallBlocksTest, AThreadKeepsSoMany) {
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 3 * SmallBlocks::kMostKept; ++i) {
    blocks.push_back(SmallBlocks::take(1));
  }
  EXPECT_EQ(SmallBlocks::kept(1), 0U);
  for (void* const block : blocks) SmallBlocks::give(1, block);
  EXPECT_EQ(SmallBlocks::kept(1), SmallBlocks::kMostKept);
}

TEST_F(SmallBlocksTest, WhoeverFreesABlockKeepsIt) {
  void* const block = SmallBlocks::take(4);
  const auto before = SmallBlocks::kept(4);
  std::thread([block] {
    EXPECT_EQ(SmallBlocks::kept(4), 0U);
    SmallBlocks::give(4, block);
    EXPECT_EQ(SmallBlocks::kept(4), 1U);
  }).join();
  EXPECT_EQ(SmallBlocks::kept(4), before);
}

/// Of a thread: freed after its blocks are, and then told what is kept.
struct Late {
  ~Late() {
    if (kept == nullptr) return;
    const auto before = SmallBlocks::kept(0);
    tensor.reset();
    *kept = {before, SmallBlocks::kept(0)};
  }
  at::Tensor tensor;
  std::pair<std::size_t, std::size_t>* kept = nullptr;
};
thread_local Late late;

TEST_F(SmallBlocksTest, TensorsOfAThreadMayOutliveItsBlocks) {
  if (HeapAllocator::install() == nullptr) GTEST_SKIP() << "this machine has no heap to share";
  std::pair<std::size_t, std::size_t> kept{7, 7};
  std::thread([&kept] {
    late.kept = &kept;
    late.tensor = at::ones({3});
    { const auto other = at::ones({3}); }
    EXPECT_GE(SmallBlocks::kept(0), 1U);
  }).join();
  EXPECT_EQ(kept.first, 0U) << "the thread has freed what it kept";
  EXPECT_EQ(kept.second, 0U) << "what is freed later is not kept";
}

TEST_F(SmallBlocksTest, TensorsAreMadeOfThem) {
  if (HeapAllocator::install() == nullptr) GTEST_SKIP() << "this machine has no heap to share";
  for (const std::int64_t numbers : {1, 16, 17, 100, 1000, 1024, 1025}) {
    const auto* const data = at::empty({numbers}).const_data_ptr();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0U);
    auto next = at::empty({numbers});
    if (numbers <= 1024) EXPECT_EQ(next.const_data_ptr(), data) << numbers;
    EXPECT_EQ(next.fill_(7).sum().item<double>(), 7.0 * static_cast<double>(numbers));
  }
}

TEST(SmallBlocks, LibTorchKnowsThemAsItsOwn) {
  if (HeapAllocator::install() == nullptr) GTEST_SKIP() << "this machine has no heap to share";
  auto* const allocator = c10::GetCPUAllocator();
  auto data = allocator->allocate(100);
  EXPECT_TRUE(allocator->is_simple_data_ptr(data));
  // As those do who take a block out of its tensor.
  void* const block = data.release_context();
  allocator->raw_deallocate(block);
  EXPECT_EQ(allocator->allocate(0).get(), nullptr);
  auto grown = at::ones({2});
  grown.resize_({5000});
  EXPECT_EQ(grown.narrow(0, 0, 2).sum().item<double>(), 2);
}

}  // namespace small_blocks_test
}  // namespace smp::d2d
