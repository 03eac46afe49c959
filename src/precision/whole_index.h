// precision/whole_index.h: where the elements of a part lie in the tensor that it is a part of.
#pragma once

#include <cstdint>

namespace smp::precision {

/// A tensor as a slice along one axis of another: element (o, i) of [outer, inner], row by row, is
/// element o · whole_inner + first + i of the whole. A whole tensor of n elements is {n, n, 0}.
struct WholeIndex {
  std::int64_t inner = 1;        ///< neighbours in the whole that are neighbours in the part
  std::int64_t whole_inner = 1;  ///< from one row of the part to the next, in the whole
  std::int64_t first = 0;        ///< place of the part's first element
};

}  // namespace smp::precision
