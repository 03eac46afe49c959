// partition/search/search.cpp: a descent from several placements. Cheap moves that even out loads
// come first; what they propose is judged, and the best is shaken and evened out again.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <set>

#include "partition/search/balance.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

/// A bottleneck this near its bound need not be evened out further before it is judged.
constexpr double kBalanced = 1.03;

// What a border between stages may cost, from nothing to more than any balance.
constexpr std::array kPrices{0.0, 0.01, 0.03, 0.1, 0.3};
constexpr std::size_t kMostStarts = 3;
constexpr std::size_t kMostCallers = 3;
constexpr int kStagesToTry = 8;
constexpr int kLongestShift = 8;
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
  Search(const CostTree& tree, const simulate::Machine& machine, const Judge& judge, int budget)
      : tree_(tree),
        machine_(machine),
        judge_(judge),
        budget_(budget),
        order_(tree),
        balanced_enough_(kBalanced * bottleneck_lower_bound(tree, machine)) {}

  std::vector<int> run(const std::vector<std::vector<int>>& starts) {
    best_.stages = starts.front();
    if (may_try_all()) return best_of_all(starts);
    std::vector<Found> found;
    found.reserve(starts.size());
    for (const auto& start : starts) found.push_back(judged(start, 0));
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.value < b.value; });
    found.resize(std::min<std::size_t>(found.size(), kMostStarts));
    for (const Found& start : found) {
      for (const double price : kPrices) judged(even_out(start.stages, price), price);
    }
    place_callers();
    descend();
    if (machine_.stages > 1 && tree_.nodes.size() > 2) shake();
    return best_.stages;
  }

 private:
  // True if there are no more placements than may be judged.
  bool may_try_all() const {
    std::int64_t placements = 1;
    for (int node = 1; node < size(); ++node) {
      if (may_move(node)) placements *= machine_.stages;
      if (placements > budget_) return false;
    }
    return machine_.stages > 1;
  }

  std::vector<int> best_of_all(const std::vector<std::vector<int>>& starts) {
    for (const auto& start : starts) judged(start, 0);
    auto stages = starts.front();
    judge_all(stages, 1);
    return best_.stages;
  }

  // All stages for `node` and those after it.
  void judge_all(std::vector<int>& stages, int node) {
    while (node < size() && !may_move(node)) ++node;
    if (node == size()) {
      judged(stages, 0);
      return;
    }
    for (stages[node] = 0; stages[node] < machine_.stages; ++stages[node]) {
      judge_all(stages, node + 1);
    }
  }

  std::vector<int> even_out(std::vector<int> stages, double price) const {
    if (budget_ <= 0) return stages;
    return balanced(tree_, machine_, std::move(stages), {.crossing_price = price});
  }

  struct Found {
    std::vector<int> stages;
    double value = std::numeric_limits<double>::infinity();
    double price = 0;  // with which it was evened out
  };

  // What was judged before, or may not be judged any more, is of no more use.
  Found judged(const std::vector<int>& stages, double price) {
    Found found{stages, std::numeric_limits<double>::infinity(), price};
    if (budget_ <= 0 || !seen_.insert(stages).second) return found;
    --budget_;
    found.value = judge_(stages);
    if (found.value < best_.value) best_ = found;
    return found;
  }

  // Finds stages for the nodes that call most: what they called returns only when their own stage
  // is done with whatever else it runs.
  void place_callers() {
    for (const int caller : busiest_callers()) {
      const int step = std::max(1, machine_.stages / kStagesToTry);
      for (int stage = 0; stage < machine_.stages; stage += step) {
        std::vector<int> stages = best_.stages;
        stages[caller] = stage;
        judged(stages, best_.price);
      }
    }
  }

  // Those with most children on other stages, of the best placement.
  std::vector<int> busiest_callers() const {
    std::vector<std::pair<int, int>> callers;  // minus the number of calls, node
    for (std::size_t i = 1; i < tree_.nodes.size(); ++i) {
      const int node = static_cast<int>(i);
      if (!may_move(node)) continue;
      int calls = 0;
      for (const int child : tree_.nodes[i].children) {
        calls += best_.stages[child] != best_.stages[i];
      }
      if (calls > 1) callers.emplace_back(-calls, node);
    }
    std::sort(callers.begin(), callers.end());
    std::vector<int> busiest;
    for (std::size_t i = 0; i < std::min(callers.size(), kMostCallers); ++i) {
      busiest.push_back(callers[i].second);
    }
    return busiest;
  }

  // Goes to the best neighbour while there is a better one, with half of the judgements at the most
  // and only where these are enough for all neighbours of a placement.
  void descend() {
    const std::int64_t nodes = size() - 1;
    const std::int64_t neighbours = 2 * nodes * (machine_.stages - 1) + nodes * nodes / 2;
    const int left = budget_ / 2;
    if (neighbours > left) return;
    double value = std::numeric_limits<double>::infinity();
    while (best_.value < value && budget_ > left) {
      value = best_.value;
      judge_neighbours(Found(best_));
    }
  }

  // What differs from `from` by the stage of a node or a subtree, or by an exchange of two nodes.
  void judge_neighbours(const Found& from) {
    for (int position = 1; position < size(); ++position) {
      for (int stage = 0; stage < machine_.stages; ++stage) {
        for (const int end : {position + 1, order_.subtree_end[position]}) {
          auto stages = from.stages;
          put(stages, position, end, stage);
          judged(stages, from.price);
        }
      }
      for (int other = 1; other < position; ++other) {
        const int a = order_.nodes[position], b = order_.nodes[other];
        if (!may_move(a) || !may_move(b)) continue;
        auto stages = from.stages;
        std::swap(stages[a], stages[b]);
        judged(stages, from.price);
      }
    }
  }

  // Accepts what is a little worse, less and less so, to get out of dead ends.
  void shake() {
    const int whole = budget_;
    Found current = best_;
    // Proposals that were seen before cost no judgement, so they are counted apart.
    for (int proposals = 4 * budget_; budget_ > 0 && proposals > 0; --proposals) {
      std::vector<int> stages = current.stages;
      do change(stages);
      while (dice_.below(3) == 0);
      const double tolerance = kFirstTolerance * budget_ / whole;
      if (dice_.below(4) > 0 && bottleneck(tree_, stages, machine_) > balanced_enough_) {
        stages = even_out(stages, current.price);
      }
      const Found next = judged(stages, current.price);
      if (next.value < current.value * (1 + tolerance)) current = next;
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

  // Those that call most are chosen most.
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
  const simulate::Machine& machine_;
  const Judge& judge_;
  int budget_;
  const ExecutionOrder order_;
  const double balanced_enough_;
  Dice dice_;
  std::set<std::vector<int>> seen_;
  Found best_;
};

}  // namespace

std::vector<int> search_partition(const CostTree& tree, const simulate::Machine& machine,
                                  const std::vector<std::vector<int>>& starts, const Judge& judge,
                                  int budget) {
  return Search(tree, machine, judge, budget).run(starts);
}

}  // namespace smp::partitioning
