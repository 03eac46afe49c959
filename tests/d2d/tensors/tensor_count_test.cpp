// How many bytes of CPU tensors there are.
#include "d2d/tensors/tensor_count.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "d2d/lend/heap_allocator.h"

namespace smp::d2d {
namespace {

/// A small one, one between, and a large one, which other processes could map.
constexpr std::int64_t kBytes[] = {100, 20'000, 1'000'000};
/// What blocks are rounded up to, at most.
constexpr std::int64_t kRounded = 4096;

TEST(TensorCount, FollowsTensorsOfAllSizesAndTheMost) {
  if (!TensorCount::install()) GTEST_SKIP() << "another allocator is there";
  HeapAllocator::install();
  for (const auto bytes : kBytes) {
    const auto before = TensorCount::live();
    {
      const auto tensor = at::empty({bytes}, at::kByte);
      EXPECT_GE(TensorCount::live() - before, bytes);
      EXPECT_LE(TensorCount::live() - before, bytes + kRounded);
    }
    EXPECT_EQ(TensorCount::live(), before);
    EXPECT_GE(TensorCount::most() - before, bytes);
    TensorCount::forget_most();
    EXPECT_EQ(TensorCount::most(), before);
  }
}

TEST(TensorCount, CountsWhatOtherThreadsMakeAndFree) {
  if (!TensorCount::install()) GTEST_SKIP() << "another allocator is there";
  const auto before = TensorCount::live();
  at::Tensor tensor;
  std::thread([&] { tensor = at::empty({50'000}, at::kByte); }).join();
  EXPECT_GE(TensorCount::live() - before, 50'000);
  std::thread([&] { tensor = at::Tensor(); }).join();
  EXPECT_EQ(TensorCount::live(), before);
}

}  // namespace
}  // namespace smp::d2d
