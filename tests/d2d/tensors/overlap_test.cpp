// Which tensors have elements that share memory, against a count of addresses.
#include "d2d/tensors/overlap.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace smp::d2d {
namespace overlap_test {

/// By brute force.
bool shares_memory(const at::Tensor& tensor) {
  const auto places = at::arange(10'000).as_strided(tensor.sizes(), tensor.strides());
  std::set<std::int64_t> seen;
  const auto flat = places.contiguous().view({-1});
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (!seen.insert(flat[i].item<std::int64_t>()).second) return true;
  }
  return false;
}

/// What may share memory counts as if it did: what surely does not is told, and all that does.
TEST(Overlap, IsFound) {
  std::mt19937 random(3);
  int shared = 0, apart = 0;
  for (int i = 0; i < 400; ++i) {
    std::vector<std::int64_t> sizes, strides;
    for (unsigned d = 0; d < 1 + random() % 3; ++d) {
      sizes.push_back(random() % 5);
      strides.push_back(random() % 9);
    }
    const auto tensor = at::empty({1000}).as_strided(sizes, strides);
    const bool expected = shares_memory(tensor);
    EXPECT_TRUE(overlaps(tensor) || !expected) << tensor.sizes() << tensor.strides();
    shared += expected;
    apart += !overlaps(tensor);
  }
  EXPECT_GT(shared, 50);
  EXPECT_GT(apart, 50);
  const auto base = at::rand({4, 5, 6});
  for (const auto& view : {base, base.transpose(0, 2), base.slice(1, 1, 4, 2), base.select(2, 3),
                           base.unfold(0, 2, 2)}) {
    EXPECT_FALSE(overlaps(view)) << view.sizes() << view.strides();
  }
}

TEST(Overlap, OfARepeatedRowIsWrittenOnce) {
  const auto wide = at::zeros({2, 1, 3}).expand({2, 4, 3});
  const auto values = at::arange(6).reshape({2, 1, 3}).expand({2, 4, 3}).clone().to(at::kFloat);
  auto part = unrepeated(wide, wide);
  EXPECT_EQ(part.sizes(), at::IntArrayRef({2, 1, 3}));
  part.copy_(unrepeated(wide, values));
  EXPECT_TRUE(at::equal(wide, values));
  const auto plain = at::rand({3, 4});
  EXPECT_TRUE(unrepeated(plain, plain).is_same(plain));
}

}  // namespace overlap_test
}  // namespace smp::d2d
