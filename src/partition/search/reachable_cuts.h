// partition/search/reachable_cuts.h: where consecutive segments can end if no level may exceed a
// bound.
#pragma once

#include <vector>

#include "partition/search/segmentation.h"

namespace smp::partitioning {

/// Counts of elements, from `first` to `last`, both included.
struct CutRange {
  int first = 0;
  int last = 0;
};

/// A sequence as sums: sums[i] is the weight of its first i elements.
class ReachableCuts {
 public:
  ReachableCuts(const std::vector<double>& weights, const std::vector<Bin>& bins);

  const std::vector<double>& sums() const { return sums_; }
  const std::vector<Bin>& bins() const { return bins_; }
  int elements() const { return static_cast<int>(sums_.size()) - 1; }

  double level(const Bin& bin, int start, int end) const {
    return bin.level(sums_[end] - sums_[start]);
  }
  /// Most elements a segment from `start` on may end after; `start` - 1 if the bin is too full for
  /// none.
  int furthest_end(const Bin& bin, int start, double bound) const;
  /// The earliest start of a segment that ends after `end` elements; `end` + 1 if there is none.
  int earliest_start(const Bin& bin, int end, double bound) const;

  /// Whether all elements fit into all bins.
  bool feasible(double bound) const;
  /// Element b: after how many elements the first b bins can end, ascending, disjoint.
  std::vector<std::vector<CutRange>> reach(double bound) const;
  /// The least feasible bound; infinite if there is none.
  double least_bound() const;

 private:
  std::vector<CutRange> advance(const std::vector<CutRange>& from, const Bin& bin,
                                double bound) const;
  /// Elements that the bin cannot take, ascending.
  std::vector<int> too_large(const Bin& bin, double bound) const;

  const std::vector<Bin>& bins_;
  std::vector<double> sums_;
  std::vector<int> by_weight_;  // elements, the largest first
};

}  // namespace smp::partitioning
