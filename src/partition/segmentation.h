// partition/segmentation.h: cuts a sequence into consecutive segments of nearly equal weight.
// Paper: App. C.3, equations 2 and 3.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace smp::partition {

/// What a rank carries already, and whether it must get at least one element of the sequence.
struct Bin {
  std::int64_t load = 0;
  bool needs_one = true;
};

/// Cuts `weights` into one consecutive, possibly empty, segment per bin so that the largest
/// load + segment is as small as possible; among those cuts, so that the loads are as equal as
/// possible (least sum of squares).
/// @param weights  not negative
/// @return  number of elements per bin; nothing if more bins need an element than there are.
std::optional<std::vector<int>> min_max_segments(const std::vector<std::int64_t>& weights,
                                                 const std::vector<Bin>& bins);

}  // namespace smp::partition
