// partition/segmentation.cpp: two runs of one dynamic program: first for the least maximum, then,
// not exceeding it, for the least sum of squares. O(n² · bins).
#include "partition/segmentation.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace smp::partition {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

// Best value and cut for the first i elements in the first b bins.
struct Cell {
  double value = kImpossible;
  int previous = -1;  // elements before the last segment
};

using Join = std::function<double(double before, double load)>;

class Segmentation {
 public:
  Segmentation(const std::vector<std::int64_t>& weights, const std::vector<Bin>& bins)
      : bins_(bins), sums_(weights.size() + 1, 0) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      sums_[i + 1] = sums_[i] + static_cast<double>(weights[i]);
    }
  }

  // Fills the table, joining the loads of bins by `join`; returns the value for everything.
  double run(const Join& join) {
    const int count = static_cast<int>(sums_.size());
    table_.assign(bins_.size() + 1, std::vector<Cell>(count));
    table_[0][0].value = 0;
    for (std::size_t b = 0; b < bins_.size(); ++b) {
      for (int end = 0; end < count; ++end) table_[b + 1][end] = best(b, end, join);
    }
    return table_.back().back().value;
  }

  std::vector<int> sizes() const {
    std::vector<int> sizes(bins_.size());
    int end = static_cast<int>(sums_.size()) - 1;
    for (std::size_t b = bins_.size(); b-- > 0;) {
      const int start = table_[b + 1][end].previous;
      sizes[b] = end - start;
      end = start;
    }
    return sizes;
  }

 private:
  Cell best(std::size_t bin, int end, const Join& join) const {
    Cell cell;
    const int last_start = bins_[bin].needs_one ? end - 1 : end;
    for (int start = 0; start <= last_start; ++start) {
      const double before = table_[bin][start].value;
      if (before == kImpossible) continue;
      const double load = static_cast<double>(bins_[bin].load) + sums_[end] - sums_[start];
      const double value = join(before, load);
      if (value < cell.value) cell = {value, start};
    }
    return cell;
  }

  const std::vector<Bin>& bins_;
  std::vector<double> sums_;  // of the first i weights
  std::vector<std::vector<Cell>> table_;
};

}  // namespace

std::optional<std::vector<int>> min_max_segments(const std::vector<std::int64_t>& weights,
                                                 const std::vector<Bin>& bins) {
  Segmentation segmentation(weights, bins);
  const double least =
      segmentation.run([](double before, double load) { return std::max(before, load); });
  if (least == kImpossible) return std::nullopt;
  segmentation.run([least](double before, double load) {
    return load > least ? kImpossible : before + load * load;
  });
  return segmentation.sizes();
}

}  // namespace smp::partition
