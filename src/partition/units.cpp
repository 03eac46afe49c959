// partition/units.cpp: walks down from the model, always opening the largest piece.
#include "partition/units.h"

#include <algorithm>
#include <set>

namespace smp::partition {
namespace {

class Refinement {
 public:
  Refinement(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size)
      : tree_(tree), fixed_(fixed), pp_size_(pp_size) {
    measure();
    if (is_free(0)) open(0);
  }

  Units run() {
    while (true) {
      const int next = next_to_open();
      if (next < 0) break;
      units_.erase(next);
      open(next);
    }
    return result();
  }

 private:
  int parent(int node) const { return tree_.nodes[node].parent; }
  bool is_free(int node) const { return fixed_[node] < 0; }

  // Bytes of each free subtree; a tied weight counts where it is registered first.
  void measure() {
    bytes_.assign(tree_.nodes.size(), 0);
    std::set<int> counted;
    for (std::size_t i = 0; i < tree_.nodes.size(); ++i) {
      for (const OwnParameter& own : tree_.nodes[i].parameters) {
        if (is_free(static_cast<int>(i)) && counted.insert(own.parameter).second) {
          bytes_[i] += tree_.parameters[own.parameter].bytes;
        }
      }
    }
    for (int i = static_cast<int>(tree_.nodes.size()) - 1; i >= 0; --i) {
      if (parent(i) >= 0) bytes_[parent(i)] += bytes_[i];
    }
    total_ = bytes_[0];
  }

  // The movable modules nearest below `node`, looking through those that stay with it.
  void movable_below(int node, std::vector<int>& found) const {
    for (const int child : tree_.nodes[node].children) {
      if (!is_free(child)) continue;
      if (tree_.nodes[child].movable() && worth_moving(child)) {
        found.push_back(child);
      } else {
        movable_below(child, found);
      }
    }
  }

  // A child without parameters stays with its parent, unless that would tear a Sequential or no
  // module has parameters.
  bool worth_moving(int node) const {
    return bytes_[node] > 0 || total_ == 0 || holds_parameters(node) ||
           tree_.nodes[parent(node)].sequential;
  }

  bool holds_parameters(int node) const {
    const ModuleNode& module = tree_.nodes[node];
    return !module.parameters.empty() ||
           std::any_of(module.children.begin(), module.children.end(),
                       [this](int child) { return holds_parameters(child); });
  }

  void open(int node) {
    std::vector<int> below;
    movable_below(node, below);
    units_.insert(below.begin(), below.end());
  }

  bool can_open(int unit) const {
    std::vector<int> below;
    movable_below(unit, below);
    return !below.empty();
  }

  // What cannot leave an opened module goes to its parent's rank: if that is most of it, it had
  // better stay whole.
  bool mostly_movable(int unit) const {
    std::vector<int> below;
    movable_below(unit, below);
    std::int64_t moving = 0;
    for (const int module : below) moving += bytes_[module];
    return moving * 2 >= bytes_[unit];
  }

  int weighty_units() const {
    return static_cast<int>(std::count_if(units_.begin(), units_.end(), [this](int unit) {
      return total_ == 0 || bytes_[unit] > 0;
    }));
  }

  int next_to_open() const {
    const bool too_few = weighty_units() < pp_size_;
    int best = -1;
    for (const int unit : units_) {
      // Cutting deeper costs messages, so only a piece that spoils the balance is opened.
      const bool too_large = bytes_[unit] * 4 * pp_size_ > total_ * 3 && mostly_movable(unit);
      if (!(too_few || too_large) || !can_open(unit)) continue;
      if (best < 0 || bytes_[unit] > bytes_[best]) best = unit;
    }
    return best;
  }

  Units result() const {
    Units units;
    units.anchors.resize(tree_.nodes.size());
    for (const int unit : units_) {
      units.roots.push_back(unit);
      units.bytes.push_back(bytes_[unit]);
    }
    for (std::size_t i = 0; i < tree_.nodes.size(); ++i) {
      units.anchors[i] = anchor(static_cast<int>(i), units);
    }
    return units;
  }

  Anchor anchor(int node, const Units& units) const {
    if (!is_free(node)) return {fixed_[node], -1};
    const auto at = std::find(units.roots.begin(), units.roots.end(), node);
    if (at != units.roots.end()) return {-1, static_cast<int>(at - units.roots.begin())};
    return parent(node) < 0 ? Anchor{0, -1} : units.anchors[parent(node)];
  }

  const ModuleTree& tree_;
  const std::vector<int>& fixed_;
  const int pp_size_;
  std::vector<std::int64_t> bytes_;
  std::int64_t total_ = 0;
  std::set<int> units_;  // module indices: in the order of registration
};

}  // namespace

Units find_units(const ModuleTree& tree, const std::vector<int>& fixed, int pp_size) {
  return Refinement(tree, fixed, pp_size).run();
}

}  // namespace smp::partition
