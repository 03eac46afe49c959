// partition/search/reachable_cuts.h: where consecutive segments can end if no level may exceed a
// bound.
#pragma once

#include <vector>

#include "partition/search/segmentation.h"

namespace smp::partitioning {

/// A range of numbers of elements, from `first` to `last`, both included.
struct CutRange {
  int first = 0;
  int last = 0;
};

/// The ways to cut a sequence of weights into one consecutive segment per bin, without any level
/// above a bound. Works on prefix sums: sums()[i] is the weight of the first i elements. Refers to
/// `bins`.
class ReachableCuts {
 public:
  ReachableCuts(const std::vector<double>& weights, const std::vector<Bin>& bins);

  const std::vector<double>& sums() const { return sums_; }
  const std::vector<Bin>& bins() const { return bins_; }
  int elements() const { return static_cast<int>(sums_.size()) - 1; }

  double level(const Bin& bin, int start, int end) const {
    return bin.level(sums_[end] - sums_[start]);
  }
  /// The most elements after which a segment from `start` on may end; `start` - 1 if the bin is too
  /// full even for an empty segment.
  int furthest_end(const Bin& bin, int start, double bound) const;
  /// The earliest start of a segment that ends after `end` elements; `end` + 1 if there is none.
  int earliest_start(const Bin& bin, int end, double bound) const;

  /// True if the bins can take all elements within the bound.
  bool feasible(double bound) const;
  /// Returns a vector whose element b holds the numbers of elements after which the first b bins
  /// can end, as ascending, disjoint ranges.
  std::vector<std::vector<CutRange>> reach(double bound) const;
  /// Returns the least feasible bound; infinite if there is none.
  double least_bound() const;

 private:
  std::vector<CutRange> advance(const std::vector<CutRange>& from, const Bin& bin,
                                double bound) const;
  /// The elements that alone are too large for the bin, ascending.
  std::vector<int> too_large(const Bin& bin, double bound) const;

  const std::vector<Bin>& bins_;
  std::vector<double> sums_;
  std::vector<int> by_weight_;  // elements, the largest first
};

}  // namespace smp::partitioning
