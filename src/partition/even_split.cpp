// partition/even_split.cpp: pieces in the order of registration, tied ones joined, cut into runs.
#include "partition/even_split.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "partition/placement_rules.h"
#include "partition/segmentation.h"
#include "partition/units.h"

namespace smp::partition {
namespace {

using base::concat;

// Sets of units that must stay together, because they share weights; some are bound to a stage.
class TiedUnits {
 public:
  explicit TiedUnits(std::size_t count) : leader_(count), stage_(count, -1) {
    std::iota(leader_.begin(), leader_.end(), 0);
  }

  // The first unit of the set that `unit` belongs to.
  int leader(int unit) const { return leader_[unit] == unit ? unit : leader(leader_[unit]); }
  int stage(int unit) const { return stage_[leader(unit)]; }

  void tie(int a, int b) {
    const auto [first, second] = std::minmax({leader(a), leader(b)});
    if (first == second) return;
    leader_[second] = first;
    if (stage_[first] < 0) stage_[first] = stage_[second];
  }

  // The first binding stands; a contradicting one shows as a fault of the placement.
  void bind(int unit, int stage) {
    int& bound = stage_[leader(unit)];
    if (bound < 0) bound = stage;
  }

 private:
  std::vector<int> leader_;
  std::vector<int> stage_;  // of leaders; -1: free
};

TiedUnits tie_units(const ModuleTree& tree, const Units& units) {
  TiedUnits tied(units.roots.size());
  for (const std::vector<int>& holders : holders_of_parameters(tree)) {
    int unit = -1;
    int stage = -1;
    for (const int holder : holders) {
      const Anchor& anchor = units.anchors[holder];
      if (anchor.unit < 0) {
        if (stage < 0) stage = anchor.rank;
      } else if (unit < 0) {
        unit = anchor.unit;
      } else {
        tied.tie(unit, anchor.unit);
      }
    }
    if (unit >= 0 && stage >= 0) tied.bind(unit, stage);
  }
  return tied;
}

// Bytes that stages carry through modules whose place is known; such a stage may do without a
// piece.
std::vector<Bin> make_bins(const ModuleTree& tree, const std::vector<int>& fixed,
                           const Units& units, int pp_size) {
  std::vector<Bin> bins(pp_size);
  const auto holders = holders_of_parameters(tree);
  for (std::size_t p = 0; p < holders.size(); ++p) {
    if (holders[p].empty()) continue;
    const Anchor& anchor = units.anchors[holders[p].front()];
    if (anchor.unit < 0) bins.at(anchor.rank).load += static_cast<double>(tree.parameters[p].bytes);
  }
  for (const int stage : fixed) {
    if (stage >= 0) bins.at(stage).needs_one = false;
  }
  for (Bin& bin : bins) bin.needs_one &= bin.load == 0;
  return bins;
}

// @param served  stages that have something to run without any of the pieces
[[noreturn]] void too_few_modules(std::size_t pieces, std::size_t served, const ModuleTree& tree,
                                  int pp_size) {
  const auto movable = std::count_if(tree.nodes.begin() + 1, tree.nodes.end(),
                                     [](const ModuleNode& node) { return node.movable(); });
  throw ResourceError(concat(
      "there are ", pp_size, " stages but only ", pieces, pieces == 1 ? " piece" : " pieces",
      " of the model to place (", tree.nodes.size(), " modules, ", movable,
      " of them can run on a rank of their own, tied weights count as one piece); use at most ",
      std::max<std::size_t>(pieces + served, 1),
      " ranks, or declare more of its modules with SMP_MODULE"));
}

// Splits the units that no stage claims yet.
class EvenSplit {
 public:
  EvenSplit(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size)
      : tree_(tree),
        pp_size_(pp_size),
        units_(find_units(tree, fixed, pp_size)),
        tied_(tie_units(tree, units_)),
        bins_(make_bins(tree, fixed, units_, pp_size)) {}

  std::vector<int> run() {
    gather_pieces();
    const auto sizes = min_max_segments(weights_, bins_);
    if (!sizes) too_few_modules(pieces_.size(), served_stages(), tree_, pp_size_);
    std::vector<int> stage_of_unit(units_.roots.size(), -1);
    auto piece = pieces_.begin();
    for (int stage = 0; stage < pp_size_; ++stage) {
      for (int i = 0; i < (*sizes)[stage]; ++i) stage_of_unit[*piece++] = stage;
    }
    std::vector<int> stages;
    for (const Anchor& anchor : units_.anchors) {
      stages.push_back(anchor.unit < 0 ? anchor.rank : stage_of(anchor.unit, stage_of_unit));
    }
    return stages;
  }

 private:
  int stage_of(int unit, const std::vector<int>& stage_of_unit) const {
    return tied_.stage(unit) >= 0 ? tied_.stage(unit) : stage_of_unit[tied_.leader(unit)];
  }

  std::size_t served_stages() const {
    return static_cast<std::size_t>(
        std::count_if(bins_.begin(), bins_.end(), [](const Bin& bin) { return !bin.needs_one; }));
  }

  // One piece per set of tied units. A module weighs its bytes and one more, so that modules
  // without parameters are spread by their number.
  void gather_pieces() {
    std::vector<double> weight(units_.roots.size(), 0);
    for (std::size_t unit = 0; unit < weight.size(); ++unit) {
      weight[tied_.leader(static_cast<int>(unit))] += static_cast<double>(units_.bytes[unit] + 1);
    }
    for (std::size_t u = 0; u < weight.size(); ++u) {
      const int unit = static_cast<int>(u);
      if (tied_.leader(unit) != unit) continue;
      if (const int stage = tied_.stage(unit); stage >= 0) {
        bins_.at(stage).load += weight[u];
        bins_.at(stage).needs_one = false;
      } else {
        pieces_.push_back(unit);
        weights_.push_back(weight[u]);
      }
    }
    if (pp_size_ == 1) bins_.front().needs_one = false;
  }

  const ModuleTree& tree_;
  const int pp_size_;
  const Units units_;
  const TiedUnits tied_;
  std::vector<Bin> bins_;
  std::vector<int> pieces_;  // leading units
  std::vector<double> weights_;
};

}  // namespace

std::vector<int> even_split(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size) {
  return EvenSplit(tree, fixed, pp_size).run();
}

}  // namespace smp::partition
