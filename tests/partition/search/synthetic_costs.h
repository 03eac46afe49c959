// Cost trees of synthetic models, with nodes fixed or not, for tests of what improves a placement.
#pragma once

#include <algorithm>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/search/tree_builder.h"
#include "support/model_families.h"

namespace smp::partitioning {

inline CostTree cost_tree(const SyntheticModel& model) {
  return make_cost_tree(model.tree, model.trace, nothing_fixed(model.tree));
}

/// Every fifth module that may move is fixed on stage 2.
inline CostTree partly_fixed_t5() {
  const SyntheticModel model = t5({});
  std::vector<int> fixed = nothing_fixed(model.tree);
  for (std::size_t i = 5; i < fixed.size(); i += 5) {
    if (model.tree.nodes[i].movable()) fixed[i] = 2;
  }
  return make_cost_tree(model.tree, model.trace, fixed);
}

/// What is not fixed on stage 0.
inline std::vector<int> start_of(const CostTree& tree) {
  std::vector<int> stages;
  for (const CostNode& node : tree.nodes) stages.push_back(std::max(0, node.fixed));
  return stages;
}

inline bool keeps_fixed_nodes(const CostTree& tree, const std::vector<int>& stages) {
  return std::equal(
      stages.begin(), stages.end(), tree.nodes.begin(), tree.nodes.end(),
      [](int stage, const CostNode& node) { return node.fixed < 0 || stage == node.fixed; });
}

}  // namespace smp::partitioning
