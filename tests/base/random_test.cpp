// Streams by key: the same numbers for the same key on every processor, others for another.
#include "base/random.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace smp::base {
namespace random_test {

std::uint32_t next() {
  return static_cast<at::CPUGeneratorImpl*>(default_generator().unsafeGetGeneratorImpl())->random();
}

std::vector<std::uint32_t> first_of(std::uint64_t key, int count) {
  const RandomScope scope(key);
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(next());
  return numbers;
}

std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// One number after the other, as a processor does that has no wide multiplication.
std::vector<std::uint32_t> expected(std::uint64_t key, int count) {
  at::mt19937_data_pod state{};
  state.seeded_ = true;
  state.left_ = 1;
  const auto mixed = splitmix64(key);
  for (std::size_t i = 0; i < state.state_.size(); ++i) {
    volatile std::uint32_t x = static_cast<std::uint32_t>(i) * 0x9e3779b9u;
    x = x + static_cast<std::uint32_t>(mixed);
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15) ^ static_cast<std::uint32_t>(mixed >> 32)) * 0x735a2d97u;
    state.state_[i] = x ^ (x >> 15);
  }
  at::mt19937 engine;
  engine.set_data(state);
  std::vector<std::uint32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(engine());
  return numbers;
}

TEST(RandomScope, EveryProcessorDrawsTheSameNumbers) {
  for (const std::uint64_t key : {0ull, 1ull, 42ull, ~0ull}) {
    EXPECT_EQ(first_of(key, 2000), expected(key, 2000)) << key;
  }
}

TEST(RandomScope, ScopesNestAndTheUsersStreamGoesOn) {
  at::manual_seed(5);
  const auto first = next(), second = next();
  at::manual_seed(5);
  EXPECT_EQ(next(), first);
  {
    const RandomScope outer(1);
    const auto of_outer = next();
    {
      const RandomScope inner(2);
      EXPECT_NE(next(), of_outer);
    }
    EXPECT_EQ((std::vector{of_outer, next()}), first_of(1, 2));
  }
  EXPECT_EQ(next(), second);
}

TEST(RandomScope, AStreamBeginsWithoutWhatTheLastOneLeft) {
  const auto normal = [] {
    const RandomScope scope(3);
    return at::randn({1}).item<float>();  // draws two, of which LibTorch keeps one
  };
  EXPECT_EQ(normal(), normal());
}

/// Of keys that follow each other, as those of calls do: each bit of what is drawn first is as
/// often 1 as 0, and changes as often as not from one key to the next (within five deviations).
TEST(RandomScope, KeysThatFollowEachOtherHaveUnrelatedStreams) {
  constexpr int kKeys = 1 << 14;
  std::vector<int> ones(32), changes(32);
  std::uint32_t before = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) {
    const auto number = first_of(key, 1)[0];
    for (unsigned bit = 0; bit < 32; ++bit) {
      ones[bit] += static_cast<int>((number >> bit) & 1);
      changes[bit] += static_cast<int>(((number ^ before) >> bit) & 1);
    }
    before = number;
  }
  const double deviation = std::sqrt(kKeys) / 2;
  for (unsigned bit = 0; bit < 32; ++bit) {
    EXPECT_NEAR(ones[bit], kKeys / 2, 5 * deviation) << bit;
    EXPECT_NEAR(changes[bit], kKeys / 2, 5 * deviation) << bit;
  }
}

}  // namespace random_test
}  // namespace smp::base
