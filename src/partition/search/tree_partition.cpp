// partition/search/tree_partition.cpp: the tree algorithm of paper §4.5 (Algorithm 1) and
// App. C.4 (Algorithm 2). Every node gets a set of stages and shares it out among its children.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "partition/search/dhondt.h"
#include "partition/search/segmentation.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

using Nodes = std::vector<int>;
using Stages = std::vector<int>;

class TreePartition {
 public:
  TreePartition(const CostTree& tree, const simulate::Machine& machine, SeatTies ties)
      : tree_(tree),
        machine_(machine),
        ties_(ties),
        free_cost_(tree.nodes.size(), 0),
        free_nodes_(tree.nodes.size(), 0),
        sets_(tree.nodes.size()) {
    for (std::size_t n = tree.nodes.size(); n-- > 0;) {
      const CostNode& node = tree.nodes[n];
      if (node.fixed < 0) {
        free_cost_[n] += node.own;
        ++free_nodes_[n];
      }
      if (node.parent < 0) continue;
      free_cost_[node.parent] += free_cost_[n];
      free_nodes_[node.parent] += free_nodes_[n];
    }
    sets_[0] = open_stages();
  }

  // Algorithm 1. It asks for breadth first; any order with parents first gives the same.
  std::vector<int> run() {
    std::vector<int> stages;
    for (std::size_t n = 0; n < tree_.nodes.size(); ++n) {
      const CostNode& node = tree_.nodes[n];
      stages.push_back(node.fixed >= 0 ? node.fixed : sets_[n].front());
      share_out(static_cast<int>(n), stages.back());
    }
    return stages;
  }

 private:
  // Stages that fixed nodes do not half fill already; all of them if none is left.
  Stages open_stages() const {
    std::vector<double> load(machine_.stages, 0);
    double speed = 0;
    for (int s = 0; s < machine_.stages; ++s) speed += machine_.speed(s);
    for (const CostNode& node : tree_.nodes) {
      SMP_ASSERT(node.fixed < machine_.stages, node.fixed);
      if (node.fixed >= 0) load[node.fixed] += node.own;
    }
    Stages open;
    for (int s = 0; s < machine_.stages; ++s) {
      if (load[s] < 0.5 * machine_.speed(s) / speed) open.push_back(s);
    }
    if (!open.empty()) return open;
    open.resize(machine_.stages);
    std::iota(open.begin(), open.end(), 0);
    return open;
  }

  int nodes_in(const Nodes& nodes) const {
    return std::accumulate(nodes.begin(), nodes.end(), 0,
                           [this](int sum, int node) { return sum + free_nodes_[node]; });
  }

  void share_out(int parent, int stage_of_parent) {
    const Stages& stages = sets_[parent];
    Nodes children;
    for (const int child : tree_.nodes[parent].children) {
      sets_[child] = {stages.front()};
      if (free_nodes_[child] > 0) children.push_back(child);
    }
    if (stages.size() == 1 || children.empty()) return;
    // With as many nodes as stages the parent keeps its own to itself, so that none stays idle.
    const bool scarce = nodes_in(children) < static_cast<int>(stages.size());
    const bool skips_first = scarce && stage_of_parent == stages.front();
    partition({stages.begin() + (skips_first ? 1 : 0), stages.end()}, children, stages.front());
  }

  // Algorithm 2. @param leftover  the stage for a segment that gets none
  void partition(const Stages& stages, const Nodes& nodes, int leftover) {
    const std::vector<Nodes> segments = cut(nodes, stages.size());
    const std::vector<Stages> shares = allocate(stages, segments);
    for (std::size_t i = 0; i < segments.size(); ++i) {
      if (shares[i].empty()) {
        for (const int node : segments[i]) sets_[node] = {leftover};
      } else if (segments[i].size() == 1 || shares[i].size() == 1) {
        for (const int node : segments[i]) sets_[node] = shares[i];
      } else {
        partition(shares[i], segments[i], shares[i].front());
      }
    }
  }

  // As many segments as stages, each with a node at least.
  std::vector<Nodes> cut(const Nodes& nodes, std::size_t stages) const {
    std::vector<double> costs;
    for (const int node : nodes) costs.push_back(free_cost_[node]);
    const std::vector<Bin> bins(std::min(stages, nodes.size()));
    const auto sizes = min_max_segments(costs, bins);
    std::vector<Nodes> segments;
    auto from = nodes.begin();
    for (const int size : *sizes) {
      segments.emplace_back(from, from + size);
      from += size;
    }
    return segments;
  }

  std::vector<Stages> allocate(const Stages& stages, const std::vector<Nodes>& segments) const {
    std::vector<Claim> claims;
    for (const Nodes& segment : segments) {
      const double cost =
          std::accumulate(segment.begin(), segment.end(), 0.0,
                          [this](double sum, int node) { return sum + free_cost_[node]; });
      claims.push_back({cost, nodes_in(segment)});
    }
    std::vector<double> seats;
    for (const int stage : stages) seats.push_back(machine_.speed(stage));
    const std::vector<int> owners = deal_seats(claims, seats, ties_);
    std::vector<Stages> shares(segments.size());
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (owners[s] >= 0) shares[owners[s]].push_back(stages[s]);
    }
    spare_first(stages.front(), claims, shares);
    return shares;
  }

  // The first stage also runs the parent and what got no stage: where every segment has one stage,
  // the cheapest gets that one. So Figure 10 has it; Algorithm 3 would give it to the dearest.
  void spare_first(int first, const std::vector<Claim>& claims, std::vector<Stages>& shares) const {
    std::size_t cheapest = 0;
    std::size_t holder = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      if (shares[i].size() != 1) return;
      if (claims[i].cost < claims[cheapest].cost) cheapest = i;
      if (shares[i].front() == first) holder = i;
    }
    if (machine_.speed(shares[cheapest].front()) != machine_.speed(first)) return;
    std::swap(shares[cheapest], shares[holder]);
  }

  const CostTree& tree_;
  const simulate::Machine& machine_;
  const SeatTies ties_;
  std::vector<double> free_cost_;  // of the subtree, without fixed nodes
  std::vector<int> free_nodes_;    // in the subtree
  std::vector<Stages> sets_;       // P(n)
};

}  // namespace

std::vector<int> tree_partition(const CostTree& tree, const simulate::Machine& machine,
                                SeatTies ties) {
  SMP_ASSERT(machine.stages >= 1 && !tree.nodes.empty());
  return TreePartition(tree, machine, ties).run();
}

}  // namespace smp::partitioning
