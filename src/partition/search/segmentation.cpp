// partition/search/segmentation.cpp: the least bound by parametric search; within it, the best cuts
// by dynamic programming. The second criterion is a Monge array, so the best start moves up with
// the end and divide and conquer finds it in O(width log width) a bin.
#include "partition/search/segmentation.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>

#include "base/check.h"
#include "partition/search/reachable_cuts.h"

namespace smp::partitioning {
namespace {

constexpr int kMostCells = 400'000;
constexpr int kLeastWidth = 16;
// Equal sums that were added up in another order count as equal.
constexpr double kRounding = 1e-12;

struct Value {
  double penalty = std::numeric_limits<double>::infinity();
  double unevenness = 0;
  friend auto operator<=>(const Value&, const Value&) = default;
};

// The ends after the first b bins that are looked at, and the best way to each.
struct EndRow {
  CutRange window;
  std::vector<Value> values;
  std::vector<int> starts;

  Value& value(int end) { return values[end - window.first]; }
  int& start(int end) { return starts[end - window.first]; }
};

class BestCuts {
 public:
  BestCuts(const ReachableCuts& cuts, const std::vector<int>& penalties, double bound)
      : cuts_(cuts), penalties_(penalties), bound_(bound), reach_(cuts.reach(bound)) {}

  std::vector<int> run() {
    lay_out_rows();
    rows_[0].value(0) = {0, 0};
    for (std::size_t b = 1; b < rows_.size(); ++b) {
      solve(b, rows_[b].window, rows_[b - 1].window);
    }
    return sizes();
  }

 private:
  int bins() const { return static_cast<int>(cuts_.bins().size()); }
  const Bin& bin(std::size_t row) const { return cuts_.bins()[row - 1]; }

  // A cut within the bound, made from the back, every bin as near to its share of what is left as
  // it can be: element b is the end of bin b.
  std::vector<int> balanced_ends() const {
    std::vector<double> capacity{0};
    std::vector<double> loads{0};
    for (const Bin& bin : cuts_.bins()) {
      capacity.push_back(capacity.back() + bin.speed);
      loads.push_back(loads.back() + bin.load);
    }
    std::vector<int> ends(bins() + 1, 0);
    ends.back() = cuts_.elements();
    for (int b = bins(); b > 1; --b) {
      const double left = cuts_.sums()[ends[b]];
      const double level = (left + loads[b]) / capacity[b];
      const double target = left - std::max(0.0, level * bin(b).speed - bin(b).load);
      ends[b - 1] = nearest_start(b, ends[b], target);
    }
    return ends;
  }

  // The start of bin b from which it can end at `end` and whose sum is nearest to `target`.
  int nearest_start(int b, int end, double target) const {
    const CutRange allowed{cuts_.earliest_start(bin(b), end, bound_),
                           bin(b).needs_one ? end - 1 : end};
    const auto& sums = cuts_.sums();
    int wanted =
        static_cast<int>(std::lower_bound(sums.begin(), sums.end(), target) - sums.begin());
    if (wanted > 0 && target - sums[wanted - 1] < sums[wanted] - target) --wanted;
    int best = -1;
    for (const CutRange& range : reach_[b - 1]) {
      const CutRange both{std::max(range.first, allowed.first), std::min(range.last, allowed.last)};
      if (both.first > both.last) continue;
      const int start = std::clamp(wanted, both.first, both.last);
      if (best < 0 || std::abs(start - wanted) < std::abs(best - wanted)) best = start;
    }
    SMP_ASSERT(best >= 0, b, " ", end);
    return best;
  }

  void lay_out_rows() {
    const std::vector<int> balanced = balanced_ends();
    const int width = std::max(kLeastWidth, kMostCells / (2 * bins()));
    for (int b = 0; b <= bins(); ++b) {
      CutRange window{std::max(reach_[b].front().first, balanced[b] - width),
                      std::min(reach_[b].back().last, balanced[b] + width)};
      if (b == bins()) window.first = window.last;
      const int cells = window.last - window.first + 1;
      rows_.push_back({window, std::vector<Value>(cells), std::vector<int>(cells, -1)});
    }
  }

  void solve(std::size_t b, CutRange ends, CutRange starts) {
    if (ends.first > ends.last) return;
    const int end = ends.first + (ends.last - ends.first) / 2;
    choose_start(b, end, starts);
    const int best = rows_[b].start(end);
    solve(b, {ends.first, end - 1}, {starts.first, best < 0 ? starts.last : best});
    solve(b, {end + 1, ends.last}, {best < 0 ? starts.first : best, starts.last});
  }

  void choose_start(std::size_t b, int end, CutRange starts) {
    starts.first = std::max(starts.first, cuts_.earliest_start(bin(b), end, bound_));
    starts.last = std::min(starts.last, bin(b).needs_one ? end - 1 : end);
    Value& best = rows_[b].value(end);
    for (int start = starts.first; start <= starts.last; ++start) {
      Value value = rows_[b - 1].value(start);
      if (std::isinf(value.penalty)) continue;
      const double segment = cuts_.sums()[end] - cuts_.sums()[start];
      value.unevenness += bin(b).level(segment) * (bin(b).load + segment);
      if (b > 1 && start < static_cast<int>(penalties_.size())) value.penalty += penalties_[start];
      if (value < best) {
        best = value;
        rows_[b].start(end) = start;
      }
    }
  }

  std::vector<int> sizes() {
    std::vector<int> sizes(bins());
    int end = cuts_.elements();
    for (int b = bins(); b > 0; --b) {
      const int start = rows_[b].start(end);
      SMP_ASSERT(start >= 0, b, " ", end);
      sizes[b - 1] = end - start;
      end = start;
    }
    return sizes;
  }

  const ReachableCuts& cuts_;
  const std::vector<int>& penalties_;
  const double bound_;
  const std::vector<std::vector<CutRange>> reach_;
  std::vector<EndRow> rows_;
};

}  // namespace

std::optional<std::vector<int>> min_max_segments(const std::vector<double>& weights,
                                                 const std::vector<Bin>& bins,
                                                 const std::vector<int>& penalties, double slack) {
  SMP_ASSERT(penalties.empty() || penalties.size() == weights.size());
  if (bins.empty()) return std::nullopt;
  const ReachableCuts cuts(weights, bins);
  const double least = cuts.least_bound();
  if (std::isinf(least)) return std::nullopt;
  return BestCuts(cuts, penalties, least * (1 + slack + kRounding)).run();
}

}  // namespace smp::partitioning
