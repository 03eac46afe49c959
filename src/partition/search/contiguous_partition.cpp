// partition/search/contiguous_partition.cpp: the whole tree as one row in the order of execution,
// cut into a run a stage. A cut below an inner node opens it.
#include <algorithm>

#include "base/check.h"
#include "partition/search/segmentation.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

// The nodes that are free to go anywhere, a parent before its children.
struct Sequence {
  std::vector<int> nodes;
  std::vector<double> costs;
  std::vector<int> depths;  // how many nodes a cut before this one opens
};

Sequence free_nodes(const CostTree& tree) {
  Sequence sequence;
  std::vector<std::pair<int, int>> open{{0, 0}};  // node and depth
  while (!open.empty()) {
    const auto [node, depth] = open.back();
    open.pop_back();
    if (tree.nodes[node].fixed < 0) {
      sequence.nodes.push_back(node);
      sequence.costs.push_back(tree.nodes[node].own);
      sequence.depths.push_back(depth);
    }
    const auto& children = tree.nodes[node].children;
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      open.emplace_back(*child, depth + 1);
    }
  }
  return sequence;
}

// What fixed nodes put on the stages. One that has something to do may get nothing more.
std::vector<Bin> make_bins(const CostTree& tree, const simulate::Machine& machine) {
  std::vector<Bin> bins(machine.stages);
  for (int stage = 0; stage < machine.stages; ++stage) bins[stage].speed = machine.speed(stage);
  for (const CostNode& node : tree.nodes) {
    if (node.fixed >= 0) bins.at(node.fixed).load += node.own;
  }
  for (Bin& bin : bins) bin.needs_one = bin.load == 0;
  return bins;
}

std::vector<int> cut(const Sequence& sequence, std::vector<Bin> bins, double slack) {
  if (const auto sizes = min_max_segments(sequence.costs, bins, sequence.depths, slack)) {
    return *sizes;
  }
  for (Bin& bin : bins) bin.needs_one = false;
  return *min_max_segments(sequence.costs, bins, sequence.depths, slack);
}

}  // namespace

std::vector<int> contiguous_partition(const CostTree& tree, const simulate::Machine& machine,
                                      double slack) {
  SMP_ASSERT(machine.stages >= 1 && slack >= 0, machine.stages, " ", slack);
  const Sequence sequence = free_nodes(tree);
  const std::vector<int> sizes = cut(sequence, make_bins(tree, machine), slack);
  std::vector<int> stages;
  for (const CostNode& node : tree.nodes) stages.push_back(node.fixed);
  auto node = sequence.nodes.begin();
  for (int stage = 0; stage < machine.stages; ++stage) {
    for (int i = 0; i < sizes[stage]; ++i) stages[*node++] = stage;
  }
  return stages;
}

}  // namespace smp::partitioning
