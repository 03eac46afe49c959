// The best placement of a small model, by trying all.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/search/step_judge.h"

namespace smp::partitioning {

/// Seconds of its step; fixed nodes stay where they are.
inline double shortest_step(const StepJudge& judge, const CostTree& costs, int stages_in_all) {
  std::vector<int> stages;
  for (const CostNode& node : costs.nodes) stages.push_back(std::max(node.fixed, 0));
  double shortest = std::numeric_limits<double>::infinity();
  for (;;) {
    shortest = std::min(shortest, judge.judge(stages, judge.settings().microbatches).step.seconds);
    std::size_t next = 0;
    for (; next < stages.size(); ++next) {
      if (costs.nodes[next].fixed >= 0) continue;
      if (++stages[next] < stages_in_all) break;
      stages[next] = 0;
    }
    if (next == stages.size()) return shortest;
  }
}

}  // namespace smp::partitioning
