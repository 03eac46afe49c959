#include "base/memory/recycling_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

namespace smp::base {
namespace recycling_allocator_test {

struct Object {
  std::uint64_t words[7] = {};
};

std::shared_ptr<Object> make() {
  return std::allocate_shared<Object>(RecyclingAllocator<Object>());
}

TEST(RecyclingAllocator, UsesMemoryAgain) {
  auto first = make();
  const auto second = make();
  EXPECT_NE(first, second);
  const auto* const memory = first.get();
  first.reset();
  const auto third = make();
  EXPECT_EQ(third.get(), memory);
  EXPECT_NE(make(), third);
}

TEST(RecyclingAllocator, LeavesArraysAlone) {
  RecyclingAllocator<Object> allocator;
  auto* const one = allocator.allocate(1);
  allocator.deallocate(one, 1);
  auto* const two = allocator.allocate(2);
  EXPECT_NE(two, one) << "there is room for one";
  allocator.deallocate(two, 2);
  EXPECT_EQ(allocator.allocate(1), one) << "what was two objects is not one now";
  allocator.deallocate(one, 1);
}

TEST(RecyclingAllocator, ObjectsMayEndOnAnotherThread) {
  auto object = make();
  object->words[6] = 7;
  std::thread([own = std::move(object)]() mutable {
    EXPECT_EQ(own->words[6], 7U);
    own.reset();
    EXPECT_EQ(make()->words[6], 0U);
  }).join();
  EXPECT_EQ(make()->words[6], 0U);
}

}  // namespace recycling_allocator_test
}  // namespace smp::base
