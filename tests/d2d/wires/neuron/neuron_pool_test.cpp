// Memory of a core in blocks, and the places that their addresses stand for.
#include "d2d/wires/neuron/neuron_pool.h"

#include <gmock/gmock.h>

#include <map>
#include <random>
#include <vector>

#include "d2d/wires/neuron/neuron_runtime.h"
#include "d2d/wires/neuron/played_neuron.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace neuron_pool_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::size_t kBlock = NeuronPool::kAlignment;

struct OneCore {
  explicit OneCore(int minor = 34)
      : neuron(minor), runtime(neuron.library(), GlobalRank(1), neuron.claim(2)) {}
  PlayedNeuron neuron;
  NeuronRuntime runtime;
};

TEST(NeuronPool, NamesPlacesInOneTensor) {
  OneCore one;
  NeuronPool pool(one.runtime, RelativeCore(1), 10 * kBlock);
  auto* const first = pool.allocate(100);
  auto* const second = pool.allocate(kBlock + 1);
  const auto inside = pool.find(second + kBlock);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(inside->tensor, pool.find(first)->tensor);
  EXPECT_EQ(inside->offset, pool.find(second)->offset + kBlock);
  EXPECT_EQ(inside->room, kBlock);
  EXPECT_EQ(inside->core, RelativeCore(1));
  EXPECT_FALSE(pool.find(second + 2 * kBlock).has_value()) << "free memory";
  EXPECT_FALSE(pool.find(reinterpret_cast<const std::byte*>(&one)).has_value());
  EXPECT_EQ(pool.require({first, kBlock}).room, kBlock);
  EXPECT_THAT(refusal<InternalError>([&] {
                pool.require({first, kBlock + 1});
              }),
              HasSubstr("only 512"));
  pool.free(first);
  EXPECT_THAT(refusal<InternalError>([&] {
                pool.require({first, 1});
              }),
              HasSubstr("no address of Neuron memory"));
}

TEST(NeuronPoolDeathTest, HasAddressesThatTheHostMayNotUse) {
  OneCore one;
  NeuronPool pool(one.runtime, RelativeCore(0), kBlock);
  std::byte* const block = pool.allocate(1);
  EXPECT_DEATH(*const_cast<volatile std::byte*>(block) = std::byte{1}, "");
}

TEST(NeuronPool, SaysWhatIsFreeWhenNothingIsLongEnough) {
  OneCore one;
  NeuronPool pool(one.runtime, RelativeCore(0), 4 * kBlock);
  auto* const first = pool.allocate(2 * kBlock);
  pool.allocate(kBlock);
  pool.free(first);
  EXPECT_THAT(refusal<ResourceError>([&] { pool.allocate(3 * kBlock); }),
              AllOf(HasSubstr("rank 1"), HasSubstr("Neuron core 2"), HasSubstr("512 of 2048"),
                    HasSubstr("longest free piece has 1024")));
  EXPECT_THAT(refusal<ResourceError>([&] { pool.allocate(SIZE_MAX); }), HasSubstr("no 1844674"));
  EXPECT_EQ(pool.used(), kBlock);
  EXPECT_EQ(pool.most_used(), 3 * kBlock);
}

TEST(NeuronPool, IsRefusedWhereTheCoreHasLess) {
  for (const int minor : kPlayedReleases) {
    OneCore one(minor);
    one.neuron.knobs().hbm_bytes = 1 << 20;
    {
      const NeuronPool half(one.runtime, RelativeCore(0), 1 << 19);
      EXPECT_THAT(
          refusal<ResourceError>([&] { NeuronPool(one.runtime, RelativeCore(0), 1 << 20); }),
          AllOf(HasSubstr("1048576 bytes"), HasSubstr("nrt_tensor_allocate"),
                HasSubstr("NRT_RESOURCE (4)")));
    }
    EXPECT_EQ(refusal([&] { NeuronPool(one.runtime, RelativeCore(0), 1 << 20); }), "accepted");
    one.neuron.expect_empty();
  }
}

/// Against brute force: blocks never overlap, and all that is free is joined again.
TEST(NeuronPool, GivesOutWhatIsFree) {
  OneCore one;
  NeuronPool pool(one.runtime, RelativeCore(0), 64 * kBlock);
  std::mt19937_64 random(5);
  std::map<std::byte*, std::size_t> blocks;  // as given out
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 && !blocks.empty()) {
      auto each = std::next(blocks.begin(), static_cast<std::ptrdiff_t>(random() % blocks.size()));
      pool.free(each->first);
      blocks.erase(each);
      continue;
    }
    const std::size_t bytes = 1 + random() % (9 * kBlock);
    std::byte* block = nullptr;
    try {
      block = pool.allocate(bytes);
    } catch (const ResourceError&) {
      continue;
    }
    const auto next = blocks.lower_bound(block);
    if (next != blocks.end()) {
      ASSERT_LE(block + bytes, next->first);
    }
    if (next != blocks.begin()) {
      ASSERT_LE(std::prev(next)->first + std::prev(next)->second, block);
    }
    blocks.emplace(block, bytes);
  }
  for (const auto& [block, bytes] : blocks) pool.free(block);
  EXPECT_EQ(pool.used(), 0U);
  EXPECT_NE(pool.allocate(64 * kBlock), nullptr);
}

}  // namespace neuron_pool_test
}  // namespace smp::d2d
