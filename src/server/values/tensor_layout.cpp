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

/// One or more dimensions that are adjacent in memory and so count as one row of elements.
struct Row {
  std::int64_t length;
  std::int64_t from;  // between neighbours, here and there
  std::int64_t to;
  std::int64_t last = 0;  // the highest element that a view touches
};

c10::SmallVector<Row, 5> rows_of(at::IntArrayRef sizes, at::IntArrayRef from, at::IntArrayRef to) {
  c10::SmallVector<Row, 5> rows;
  for (const auto d : inner_to_outer(sizes, from)) {
    const bool adjacent = !rows.empty() && from[d] == rows.back().from * rows.back().length &&
                          to[d] == rows.back().to * rows.back().length;
    if (adjacent) {
      rows.back().length *= sizes[d];
    } else {
      rows.push_back({sizes[d], from[d], to[d]});
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

std::optional<at::DimVector> compact_strides(at::IntArrayRef sizes, at::IntArrayRef strides) {
  at::DimVector compact(sizes.size(), 0);
  std::int64_t span = 1;      // of the dimensions inside
  std::int64_t adjacent = 1;  // the stride that leaves no gap, there and here
  std::int64_t next = 1;
  for (const auto d : inner_to_outer(sizes, strides)) {
    if (strides[d] < span) return std::nullopt;
    compact[d] = strides[d] == adjacent ? next : next + 1;
    span += (sizes[d] - 1) * strides[d];
    adjacent = strides[d] * sizes[d];
    next = compact[d] * sizes[d];
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

Layout distinct_dimensions(at::IntArrayRef sizes, at::IntArrayRef strides) {
  Layout distinct;
  const auto order = inner_to_outer(sizes, strides);
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    distinct.sizes.push_back(sizes[*d]);
    distinct.strides.push_back(strides[*d]);
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
