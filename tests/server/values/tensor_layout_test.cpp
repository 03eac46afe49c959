// A view of a tensor with one set of strides is found again in one with another set.
#include "server/values/tensor_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

namespace smp::server {
namespace tensor_layout_test {

at::Tensor random_view(at::Tensor tensor, std::mt19937& random, int operations) {
  for (int i = 0; i < operations; ++i) {
    const auto dim = tensor.dim();
    if (dim == 0) break;
    const auto d = static_cast<std::int64_t>(random() % static_cast<unsigned>(dim));
    const auto size = tensor.size(d);
    switch (random() % 8) {
      case 0:
        if (dim > 1) tensor = tensor.select(d, static_cast<std::int64_t>(random()) % size);
        break;
      case 1:
        tensor = tensor.slice(d, static_cast<std::int64_t>(random()) % size, size,
                              1 + static_cast<std::int64_t>(random() % 2));
        break;
      case 2:
        tensor =
            tensor.transpose(d, static_cast<std::int64_t>(random() % static_cast<unsigned>(dim)));
        break;
      case 3:
        if (dim < 5) tensor = tensor.unsqueeze(d);
        break;
      case 4:
        if (dim < 5)
          tensor = tensor.unsqueeze(0).expand([&] {
            at::DimVector sizes{3};
            for (const auto s : tensor.sizes()) sizes.push_back(s);
            return sizes;
          }());
        break;
      case 5:  // windows that overlap, or do not
        if (dim < 5) {
          const auto window = 1 + static_cast<std::int64_t>(random() % 3);
          if (window <= size) tensor = tensor.unfold(d, window, 1 + random() % 3);
        }
        break;
      case 6:                                      // elements that lie on each other in any way
        if (dim == 2 && tensor.is_contiguous()) {  // no gaps, which are nobody's elements
          const auto span = tensor.stride(0) * (tensor.size(0) - 1) + 1;
          const auto step = 1 + static_cast<std::int64_t>(random() % 4);
          if (step * 3 < span && tensor.stride(0) > 0) {
            tensor = tensor.as_strided({2, 2}, {step, step * 2 - 1}, tensor.storage_offset());
          }
        }
        break;
      default:
        if (d + 1 < dim && tensor.stride(d) == tensor.stride(d + 1) * tensor.size(d + 1)) {
          tensor = tensor.flatten(d, d + 1);
        }
    }
  }
  return tensor;
}

/// `whole`, rebuilt with compact strides in memory of its own.
at::Tensor compacted(const at::Tensor& whole, const at::DimVector& strides) {
  const auto memory = at::full({span_of(whole.sizes(), strides)}, -1, at::kLong);
  const auto tensor = memory.as_strided(whole.sizes(), strides);
  const auto distinct = distinct_dimensions(whole.sizes(), strides);
  const auto source = distinct_dimensions(whole.sizes(), whole.strides());
  memory.as_strided(distinct.sizes, distinct.strides)
      .copy_(whole.as_strided(source.sizes, source.strides, whole.storage_offset()));
  return tensor;
}

TEST(TensorLayout, ViewsAreFoundAgain) {
  int strided = 0, gaps = 0, shared = 0, copies = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto base = at::arange(2 * 3 * 4 * 5).view({2, 3, 4, 5});
    const auto whole = random_view(base, random, 3);
    const auto compact = compact_strides(whole.sizes(), whole.strides());
    const auto copy = compacted(whole, compact);
    ASSERT_TRUE(at::equal(copy, whole));
    EXPECT_EQ(copy.is_contiguous(), whole.is_contiguous()) << whole.sizes() << whole.strides();
    const auto view = random_view(copy, random, 3);
    const auto mapped = map_view(
        {at::DimVector(view.sizes()), at::DimVector(view.strides()), view.storage_offset()},
        whole.sizes(), compact, whole.strides());
    if (!mapped) {  // flattened over a gap that is narrower here
      ++copies;
      continue;
    }
    EXPECT_TRUE(at::equal(
        whole.as_strided(mapped->sizes, mapped->strides, whole.storage_offset() + mapped->offset),
        view));
    strided += !whole.is_contiguous();
    gaps += at::IntArrayRef(compact) != whole.strides();
    shared += has_shared_elements(whole.sizes(), whole.strides());
    EXPECT_EQ(has_shared_elements(whole.sizes(), whole.strides()),
              has_shared_elements(whole.sizes(), compact));
  }
  EXPECT_LT(copies, 10);
  EXPECT_GT(strided, 1000);
  EXPECT_GT(gaps, 500);
  EXPECT_GT(shared, 500);
}

TEST(TensorLayout, KeepsStridesWithoutGaps) {
  const auto image = at::empty({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(at::IntArrayRef(compact_strides(image.sizes(), image.strides())), image.strides());
  const auto turned = at::empty({6, 8}).t();
  EXPECT_EQ(at::IntArrayRef(compact_strides(turned.sizes(), turned.strides())), turned.strides());
}

/// True if two elements of the tensor are one.
bool has_repeats(const at::Tensor& tensor) {
  const auto places = at::arange(span_of(tensor.sizes(), tensor.strides()))
                          .as_strided(tensor.sizes(), tensor.strides())
                          .reshape({-1});
  return std::get<0>(at::_unique(places)).numel() < places.numel();
}

TEST(TensorLayout, ElementsThatAreOneStayOne) {
  const auto windows = at::empty({40}).slice(0, 0, 40, 2).unfold(0, 4, 1);
  EXPECT_EQ(at::IntArrayRef(compact_strides(windows.sizes(), windows.strides())),
            (at::DimVector{2, 2}))
      << "gaps are one element";
  EXPECT_EQ(distinct_dimensions(windows.sizes(), windows.strides()).sizes, (at::DimVector{20}));
  const auto apart = at::empty({40}).unfold(0, 4, 4);
  EXPECT_FALSE(has_shared_elements(apart.sizes(), apart.strides()));
  const auto grid = at::empty({5, 100}).unfold(1, 6, 4);  // rows far apart
  EXPECT_FALSE(has_shared_elements_along(0, grid.sizes(), grid.strides()));
  EXPECT_TRUE(has_shared_elements_along(1, grid.sizes(), grid.strides()));
  EXPECT_EQ(distinct_dimensions(grid.sizes(), grid.strides()).sizes, (at::DimVector{5, 98}));
}

/// Strides drawn at random: all that are one are found.
TEST(TensorLayout, NothingThatIsOneIsOverlooked) {
  std::mt19937 random(5);
  int shared = 0;
  for (int i = 0; i < 3000; ++i) {
    at::DimVector sizes, strides;
    for (auto d = 1 + random() % 4; d > 0; --d) {
      sizes.push_back(1 + random() % 4);
      strides.push_back(random() % 13);
    }
    SCOPED_TRACE(testing::Message() << at::IntArrayRef(sizes) << at::IntArrayRef(strides));
    const auto compact = compact_strides(sizes, strides);
    const auto whole = at::arange(span_of(sizes, strides)).as_strided(sizes, strides);
    ASSERT_TRUE(at::equal(compacted(whole, compact), whole));
    if (!has_repeats(whole)) continue;
    ++shared;
    EXPECT_TRUE(has_shared_elements(sizes, strides));
    EXPECT_TRUE(has_shared_elements(sizes, compact));
  }
  EXPECT_GT(shared, 500);
}

TEST(TensorLayout, WhatRunsOverTheEndOfARowIsNoView) {
  const at::DimVector sizes{3, 4}, from{5, 1}, to{10, 1};
  EXPECT_FALSE(map_view({{6}, {1}, 0}, sizes, from, to).has_value());
  EXPECT_FALSE(map_view({{2}, {1}, 4}, sizes, from, to).has_value());
  EXPECT_FALSE(map_view({{4}, {5}, 0}, sizes, from, to).has_value());
  const auto diagonal = map_view({{3}, {6}, 1}, sizes, from, to);
  ASSERT_TRUE(diagonal.has_value());
  EXPECT_EQ(diagonal->strides[0], 11);
  EXPECT_EQ(diagonal->offset, 1);
}

}  // namespace tensor_layout_test
}  // namespace smp::server
