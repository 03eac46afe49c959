// partition/search/segmentation.h: cuts a sequence into consecutive segments of nearly equal
// weight. Paper: App. C.4, equations 2 and 3.
#pragma once

#include <optional>
#include <vector>

namespace smp::partitioning {

/// A bin that takes one segment of the sequence.
struct Bin {
  double load = 0;        ///< the weight that it carries already
  double speed = 1;       ///< carries twice as much in the same time if 2
  bool needs_one = true;  ///< must get at least one element
  double level(double segment) const { return (load + segment) / speed; }
};

/// Cuts `weights` into one consecutive, possibly empty, segment per bin so that the highest level
/// is as low as possible: exactly, by bisection over the bound. O((n + bins log n) log(1/epsilon)).
///
/// Of the cuts that stay within (1 + slack) times that bound it takes one with the least sum of
/// `penalties`, then the least sum of level * (load + segment), then the earliest cuts. With more
/// than a few thousand elements and hundreds of bins this second choice looks only at cuts near a
/// balanced one, so that it takes a tenth of a second.
/// @param weights    not negative
/// @param penalties  of a cut before each element; empty: all 0
/// @return  number of elements per bin; nothing if more bins need an element than there are.
std::optional<std::vector<int>> min_max_segments(const std::vector<double>& weights,
                                                 const std::vector<Bin>& bins,
                                                 const std::vector<int>& penalties = {},
                                                 double slack = 0);

}  // namespace smp::partitioning
