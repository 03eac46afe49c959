// partition/search/reachable_cuts.cpp: a parametric search (bisection) over greedy reach.
#include "partition/search/reachable_cuts.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace smp::partitioning {
namespace {

void append(CutRange range, std::vector<CutRange>& to) {
  if (range.first > range.last) return;
  if (!to.empty() && range.first <= to.back().last + 1) {
    to.back().last = std::max(to.back().last, range.last);
  } else {
    to.push_back(range);
  }
}

}  // namespace

ReachableCuts::ReachableCuts(const std::vector<double>& weights, const std::vector<Bin>& bins)
    : bins_(bins), sums_(weights.size() + 1, 0) {
  for (std::size_t i = 0; i < weights.size(); ++i) sums_[i + 1] = sums_[i] + weights[i];
  by_weight_.resize(weights.size());
  std::iota(by_weight_.begin(), by_weight_.end(), 0);
  const auto weight = [this](int element) { return sums_[element + 1] - sums_[element]; };
  std::stable_sort(by_weight_.begin(), by_weight_.end(),
                   [&](int a, int b) { return weight(a) > weight(b); });
}

int ReachableCuts::furthest_end(const Bin& bin, int start, double bound) const {
  const auto past = std::partition_point(sums_.begin() + start, sums_.end(), [&](double sum) {
    return bin.level(sum - sums_[start]) <= bound;
  });
  return static_cast<int>(past - sums_.begin()) - 1;
}

int ReachableCuts::earliest_start(const Bin& bin, int end, double bound) const {
  const auto first = std::partition_point(sums_.begin(), sums_.begin() + end + 1, [&](double sum) {
    return bin.level(sums_[end] - sum) > bound;
  });
  return static_cast<int>(first - sums_.begin());
}

std::vector<int> ReachableCuts::too_large(const Bin& bin, double bound) const {
  std::vector<int> elements;
  for (const int element : by_weight_) {
    if (level(bin, element, element + 1) <= bound) break;
    elements.push_back(element);
  }
  std::sort(elements.begin(), elements.end());
  return elements;
}

// A bin that needs an element cannot start before one that is too large for it: such elements tear
// the range of starts.
std::vector<CutRange> ReachableCuts::advance(const std::vector<CutRange>& from, const Bin& bin,
                                             double bound) const {
  std::vector<CutRange> to;
  if (bin.level(0) > bound) return to;
  if (!bin.needs_one) {
    for (const auto [first, last] : from) append({first, furthest_end(bin, last, bound)}, to);
    return to;
  }
  const std::vector<int> gaps = too_large(bin, bound);
  for (CutRange starts : from) {
    starts.last = std::min(starts.last, elements() - 1);
    auto gap = std::lower_bound(gaps.begin(), gaps.end(), starts.first);
    for (; gap != gaps.end() && *gap <= starts.last; ++gap) {
      append({starts.first + 1, *gap}, to);
      starts.first = *gap + 1;
    }
    if (starts.first > starts.last) continue;
    append({starts.first + 1, furthest_end(bin, starts.last, bound)}, to);
  }
  return to;
}

bool ReachableCuts::feasible(double bound) const {
  std::vector<CutRange> ends{{0, 0}};
  for (const Bin& bin : bins_) {
    ends = advance(ends, bin, bound);
    if (ends.empty()) return false;
  }
  return ends.back().last == elements();
}

std::vector<std::vector<CutRange>> ReachableCuts::reach(double bound) const {
  std::vector<std::vector<CutRange>> ends{{{0, 0}}};
  for (const Bin& bin : bins_) ends.push_back(advance(ends.back(), bin, bound));
  return ends;
}

double ReachableCuts::least_bound() const {
  double high = 0;
  double low = 0;  // the largest element has to go somewhere
  for (const Bin& bin : bins_) high = std::max(high, bin.level(sums_.back()));
  if (!feasible(high)) return std::numeric_limits<double>::infinity();
  if (!by_weight_.empty()) {
    low = high;
    for (const Bin& bin : bins_) {
      low = std::min(low, level(bin, by_weight_.front(), by_weight_.front() + 1));
    }
  }
  if (feasible(low)) return low;
  while (true) {  // low is never feasible, high always is: they end up as neighbours
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) return high;
    (feasible(middle) ? high : low) = middle;
  }
}

}  // namespace smp::partitioning
