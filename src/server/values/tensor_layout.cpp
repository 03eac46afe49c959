// server/values/tensor_layout.cpp: strides as places of a number system whose digits are rows.
#include "server/values/tensor_layout.h"

#include <algorithm>
#include <numeric>

namespace smp::server {
namespace {

/// Returns the dimensions with more than one element and a stride other than 0, innermost first.
c10::SmallVector<std::size_t, 5> inner_to_outer(at::IntArrayRef sizes, at::IntArrayRef strides) {
  c10::SmallVector<std::size_t, 5> order;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] > 1 && strides[d] != 0) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  return order;
}

/// Dimensions whose elements lie on each other, mostly one dimension alone, as one row of elements.
/// Blocks do not lie on each other: within the stride of one there is room for all inside.
struct Block {
  c10::SmallVector<std::size_t, 2> dimensions;
  std::int64_t stride = 1;  // between neighbours
  std::int64_t last = 0;    // number of the last element

  std::int64_t length() const { return last + 1; }
  /// Elements of memory from its first one to its last one.
  std::int64_t reach() const { return last * stride; }
  /// Takes in a block that lies inside of this one or on it.
  void join(const Block& other) {
    const auto common = std::gcd(stride, other.stride);
    last = (reach() + other.reach()) / common;
    stride = common;
    dimensions.append(other.dimensions.begin(), other.dimensions.end());
  }
};
using Blocks = c10::SmallVector<Block, 5>;

/// Returns the blocks of a tensor, innermost first.
Blocks blocks_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  Blocks blocks;
  std::int64_t reach = 0;  // of all blocks together
  for (const auto d : inner_to_outer(sizes, strides)) {
    Block block{{d}, strides[d], sizes[d] - 1};
    auto inside = reach;
    reach += block.reach();
    while (!blocks.empty() && block.stride <= inside) {
      inside -= blocks.back().reach();
      block.join(blocks.back());
      blocks.pop_back();
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

/// One or more blocks that are adjacent in memory and so count as one row of elements.
struct Row {
  std::int64_t length;
  std::int64_t from;  // between neighbours, here and there
  std::int64_t to;
  std::int64_t last = 0;  // the highest element that a view touches
};

c10::SmallVector<Row, 5> rows_of(at::IntArrayRef sizes, at::IntArrayRef from, at::IntArrayRef to) {
  c10::SmallVector<Row, 5> rows;
  for (const auto& block : blocks_of(sizes, from)) {
    const auto d = block.dimensions.front();
    const Row row{block.length(), block.stride, to[d] / (from[d] / block.stride)};
    const bool adjacent = !rows.empty() && row.from == rows.back().from * rows.back().length &&
                          row.to == rows.back().to * rows.back().length;
    if (adjacent) {
      rows.back().length *= row.length;
    } else {
      rows.push_back(row);
    }
  }
  std::reverse(rows.begin(), rows.end());
  return rows;
}

/// Returns `distance`, which a view takes `times` times, in the strides of the other tensor;
/// nullopt if the view runs over the end of a row.
std::optional<std::int64_t> map_distance(std::int64_t distance, std::int64_t times,
                                         c10::SmallVector<Row, 5>& rows) {
  std::int64_t mapped = 0;
  for (auto& row : rows) {
    const auto digit = distance / row.from;
    distance -= digit * row.from;
    mapped += digit * row.to;
    row.last += digit * times;
    if (row.last >= row.length) return std::nullopt;
  }
  return distance == 0 ? std::optional(mapped) : std::nullopt;
}

}  // namespace

at::DimVector compact_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::DimVector compact(sizes.size(), 0);
  std::int64_t adjacent = 1;  // the stride that leaves no gap, there and here
  std::int64_t next = 1;
  for (const auto& block : blocks_of(sizes, strides)) {
    const auto stride = block.stride == adjacent ? next : next + 1;
    for (const auto d : block.dimensions) compact[d] = strides[d] / block.stride * stride;
    adjacent = block.stride * block.length();
    next = stride * block.length();
  }
  // Of one element: as in a contiguous tensor, which looks contiguous then.
  std::int64_t inner = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] == 1) compact[d] = inner;
    inner = std::max<std::int64_t>(inner, compact[d] * sizes[d]);
  }
  return compact;
}

std::int64_t span_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

bool has_shared_elements(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] == 0) return true;
  }
  const auto blocks = blocks_of(sizes, strides);
  return std::any_of(blocks.begin(), blocks.end(),
                     [](const Block& block) { return block.dimensions.size() > 1; });
}

bool has_shared_elements_along(std::size_t d, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (sizes[d] <= 1 || strides[d] == 0) return sizes[d] > 1;
  const auto blocks = blocks_of(sizes, strides);
  return std::any_of(blocks.begin(), blocks.end(), [d](const Block& block) {
    const auto& own = block.dimensions;
    return own.size() > 1 && std::find(own.begin(), own.end(), d) != own.end();
  });
}

Layout distinct_dimensions(at::IntArrayRef sizes, at::IntArrayRef strides) {
  Layout distinct;
  const auto blocks = blocks_of(sizes, strides);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
    distinct.sizes.push_back(block->length());
    distinct.strides.push_back(block->stride);
  }
  return distinct;
}

std::optional<Layout> map_view(const Layout& view, at::IntArrayRef sizes, at::IntArrayRef from,
                               at::IntArrayRef to) {
  auto rows = rows_of(sizes, from, to);
  Layout mapped{view.sizes, at::DimVector(view.strides.size(), 0), 0};
  const auto offset = map_distance(view.offset, 1, rows);
  if (view.offset < 0 || !offset) return std::nullopt;
  mapped.offset = *offset;
  for (std::size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.sizes[d] <= 1) {
      mapped.strides[d] = view.strides[d];
      continue;
    }
    const auto stride = map_distance(view.strides[d], view.sizes[d] - 1, rows);
    if (!stride) return std::nullopt;
    mapped.strides[d] = *stride;
  }
  return mapped;
}

}  // namespace smp::server
