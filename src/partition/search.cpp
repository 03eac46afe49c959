// partition/search.cpp: a descent from several placements. Cheap moves that even out loads come
// first; what they propose is judged, and the best is shaken and evened out again.
#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <set>

#include "partition/balance.h"
#include "partition/strategies.h"

namespace smp::partition {
namespace {

// What a border between stages may cost, from nothing to more than any balance.
constexpr std::array kPrices{0.0, 1e-3, 1e-2, 1e-1};
constexpr int kLongestShift = 8;
/// A placement less balanced than this is evened out before it is judged.
constexpr double kBalanced = 1.03;
constexpr double kFirstTolerance = 0.02;

// Own generator: the same placement on every rank.
class Dice {
 public:
  int below(std::size_t count) { return static_cast<int>(engine_() % count); }

 private:
  std::mt19937_64 engine_{20'240'601};
};

// Nodes in the order in which they are first executed; a subtree is a run of it.
struct ExecutionOrder {
  std::vector<int> nodes;
  std::vector<int> subtree_end;  // by position

  explicit ExecutionOrder(const CostTree& tree) { visit(tree, 0); }

 private:
  void visit(const CostTree& tree, int node) {
    const std::size_t position = nodes.size();
    nodes.push_back(node);
    subtree_end.push_back(0);
    for (const int child : tree.nodes[node].children) visit(tree, child);
    subtree_end[position] = static_cast<int>(nodes.size());
  }
};

class Search {
 public:
  Search(const CostTree& tree, const Machine& machine, const Judge& judge, int budget)
      : tree_(tree),
        machine_(machine),
        judge_(judge),
        budget_(budget),
        order_(tree),
        balanced_enough_(kBalanced * bottleneck_lower_bound(tree, machine)) {}

  std::vector<int> run(const std::vector<std::vector<int>>& starts) {
    for (const auto& start : starts) consider(start, 0);
    for (const double price : kPrices) {
      for (const auto& start : starts) consider(even_out(start, price), price);
    }
    current_ = best_;
    if (machine_.stages > 1 && tree_.nodes.size() > 2) shake();
    return best_.stages;
  }

 private:
  std::vector<int> even_out(std::vector<int> stages, double price) const {
    if (budget_ <= 0) return stages;
    return balanced(tree_, machine_, std::move(stages), {.crossing_price = price});
  }

  struct Found {
    std::vector<int> stages;
    double value = std::numeric_limits<double>::infinity();
    double price = 0;  // with which it was evened out
  };

  // @param tolerance  by which share it may be worse than the one that the search goes on from
  void consider(const std::vector<int>& stages, double price, double tolerance = 0) {
    if (best_.stages.empty()) best_.stages = current_.stages = stages;
    if (budget_ <= 0 || !seen_.insert(stages).second) return;
    --budget_;
    const double value = judge_(stages);
    if (value < best_.value) best_ = {stages, value, price};
    if (value < current_.value * (1 + tolerance)) current_ = {stages, value, price};
  }

  // Accepts what is a little worse, less and less so, to get out of dead ends.
  void shake() {
    const int whole = budget_;
    // Proposals that were seen before cost no judgement, so they are counted apart.
    for (int proposals = 4 * budget_; budget_ > 0 && proposals > 0; --proposals) {
      std::vector<int> stages = current_.stages;
      do change(stages);
      while (dice_.below(3) == 0);
      const double tolerance = kFirstTolerance * budget_ / whole;
      if (dice_.below(4) > 0 && bottleneck(tree_, stages, machine_) > balanced_enough_) {
        stages = even_out(stages, current_.price);
      }
      consider(stages, current_.price, tolerance);
    }
  }

  void change(std::vector<int>& stages) {
    switch (dice_.below(6)) {
      case 0:
        return shift_border(stages);
      case 1:
        return move(stages, true);
      case 2:
        return move(stages, false);
      case 3:
        return move_caller(stages);
      case 4:
        return exchange_stages(stages);
      default:
        return swap_runs(stages);
    }
  }

  bool may_move(int node) const { return node != 0 && tree_.nodes[node].fixed < 0; }

  void put(std::vector<int>& stages, int begin, int end, int stage) const {
    for (int i = begin; i < end; ++i) {
      if (may_move(order_.nodes[i])) stages[order_.nodes[i]] = stage;
    }
  }

  int size() const { return static_cast<int>(order_.nodes.size()); }
  int stage_at(const std::vector<int>& stages, int position) const {
    return stages[order_.nodes[position]];
  }

  // Moves the border next to some position by a few nodes, to either side.
  void shift_border(std::vector<int>& stages) {
    int border = 1 + dice_.below(order_.nodes.size() - 1);
    while (border < size() && stage_at(stages, border) == stage_at(stages, border - 1)) ++border;
    if (border == size()) return;
    const int length = 1 + dice_.below(kLongestShift);
    if (dice_.below(2) == 0) {
      put(stages, border, std::min(size(), border + length), stage_at(stages, border - 1));
    } else {
      put(stages, std::max(1, border - length), border, stage_at(stages, border));
    }
  }

  // Moves one node, or all below it too, mostly to where its parent or a neighbour is.
  void move(std::vector<int>& stages, bool whole_subtree) {
    const int position = 1 + dice_.below(order_.nodes.size() - 1);
    const int end = whole_subtree ? order_.subtree_end[position] : position + 1;
    const std::array targets{dice_.below(machine_.stages), stage_at(stages, position - 1),
                             stage_at(stages, end % size()),
                             stages[tree_.nodes[order_.nodes[position]].parent]};
    put(stages, position, end, targets[dice_.below(targets.size())]);
  }

  // Moves one node that calls another stage: what it called returns only when its own stage is done
  // with whatever else it runs. Those that call most are chosen most.
  void move_caller(std::vector<int>& stages) {
    const int start = 1 + dice_.below(order_.nodes.size() - 1);
    for (int i = start; i < size(); ++i) {
      const int caller = tree_.nodes[order_.nodes[i]].parent;
      if (!may_move(caller) || stages[caller] == stage_at(stages, i)) continue;
      stages[caller] = dice_.below(machine_.stages);
      return;
    }
  }

  // Two stages change all that they may give away. Matters because the model itself stays, and what
  // it calls returns through its stage.
  void exchange_stages(std::vector<int>& stages) {
    const int a = dice_.below(3) > 0 ? stages[0] : dice_.below(machine_.stages);
    const int b = dice_.below(machine_.stages);
    for (const int node : order_.nodes) {
      if (!may_move(node) || (stages[node] != a && stages[node] != b)) continue;
      stages[node] = stages[node] == a ? b : a;
    }
  }

  // Two runs on one stage each change places.
  void swap_runs(std::vector<int>& stages) {
    const auto [a, a_end] = run_at(stages, dice_.below(order_.nodes.size()));
    const auto [b, b_end] = run_at(stages, dice_.below(order_.nodes.size()));
    const int first = stage_at(stages, a), second = stage_at(stages, b);
    put(stages, a, a_end, second);
    put(stages, b, b_end, first);
  }

  // From `begin` on, as long as the stage stays the same, and not too long.
  std::pair<int, int> run_at(const std::vector<int>& stages, int begin) {
    const int most = std::min(size(), begin + 1 + dice_.below(kLongestShift));
    int end = begin + 1;
    while (end < most && stage_at(stages, end) == stage_at(stages, begin)) ++end;
    return {begin, end};
  }

  const CostTree& tree_;
  const Machine& machine_;
  const Judge& judge_;
  int budget_;
  const ExecutionOrder order_;
  const double balanced_enough_;
  Dice dice_;
  std::set<std::vector<int>> seen_;
  Found best_, current_;
};

}  // namespace

std::vector<int> search_partition(const CostTree& tree, const Machine& machine,
                                  const std::vector<std::vector<int>>& starts, const Judge& judge,
                                  int budget) {
  return Search(tree, machine, judge, budget).run(starts);
}

}  // namespace smp::partition
