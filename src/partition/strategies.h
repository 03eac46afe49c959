// partition/strategies.h: ways to spread the nodes of a cost tree over stages. Each returns the
// stage of every node, keeps fixed nodes where they are, and is a pure, deterministic function.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "partition/cost_tree.h"
#include "partition/machine.h"

namespace smp::partition {

/// The paper's algorithm: Algorithms 1 and 2 over the tree, seats by D'Hondt.
std::vector<int> tree_partition(const CostTree& tree, const Machine& machine);

/// Nodes in execution order, at any depth, cut into one run a stage with the least maximum.
std::vector<int> contiguous_partition(const CostTree& tree, const Machine& machine);

/// Judges a placement: smaller is better; infinite if it does not fit the memory.
using Judge = std::function<double(const std::vector<int>& stages_of_nodes)>;

/// The best placement found from `starts` by moving and swapping boundaries, single nodes and
/// subtrees. @param budget  most calls of `judge`.
std::vector<int> search_partition(const CostTree& tree, const Machine& machine,
                                  const std::vector<std::vector<int>>& starts, const Judge& judge,
                                  int budget);

/// Largest cost of a stage, divided by its speed.
double bottleneck(const CostTree& tree, const std::vector<int>& stages_of_nodes,
                  const Machine& machine);

/// No placement of these nodes has a smaller bottleneck.
double bottleneck_lower_bound(const CostTree& tree, const Machine& machine);

}  // namespace smp::partition
