// partition/model/stage_use.cpp: counts what stages have to do, and fills idle ones.
#include "partition/model/stage_use.h"

#include <algorithm>

#include "base/check.h"

namespace smp::partitioning {
namespace {

bool gives_work(const CostTree& tree, std::size_t node) {
  return node > 0 || tree.nodes[0].weight_bytes > 0;
}

bool may_move(const CostTree& tree, std::size_t node) {
  return node > 0 && tree.nodes[node].fixed < 0;
}

// How many nodes give each stage something to do.
std::vector<int> work_by_stage(const CostTree& tree, const simulate::Machine& machine,
                               const std::vector<int>& stages) {
  std::vector<int> count(machine.stages, 0);
  for (std::size_t i = 0; i < stages.size(); ++i) count.at(stages[i]) += gives_work(tree, i);
  return count;
}

// The largest free node of a stage with at least one more to do.
int largest_spare(const CostTree& tree, const std::vector<int>& stages,
                  const std::vector<int>& count) {
  int best = -1;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!may_move(tree, i) || count[stages[i]] < 2) continue;
    if (best < 0 || tree.nodes[i].own > tree.nodes[best].own) best = static_cast<int>(i);
  }
  return best;
}

}  // namespace

StageUse stage_use(const CostTree& tree, const simulate::Machine& machine) {
  StageUse use;
  std::vector<bool> served(machine.stages, false);
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    if (may_move(tree, i)) {
      ++use.free;
    } else if (gives_work(tree, i)) {
      served.at(std::max(tree.nodes[i].fixed, 0)) = true;
    }
  }
  use.served = static_cast<int>(std::count(served.begin(), served.end(), true));
  return use;
}

bool every_stage_used(const CostTree& tree, const simulate::Machine& machine,
                      const std::vector<int>& stages) {
  const std::vector<int> count = work_by_stage(tree, machine, stages);
  return machine.stages == 1 || std::find(count.begin(), count.end(), 0) == count.end();
}

std::vector<int> use_every_stage(const CostTree& tree, const simulate::Machine& machine,
                                 std::vector<int> stages) {
  std::vector<int> count = work_by_stage(tree, machine, stages);
  for (int stage = 0; stage < machine.stages && machine.stages > 1; ++stage) {
    if (count[stage] > 0) continue;
    const int node = largest_spare(tree, stages, count);
    SMP_ASSERT(node >= 0, "stage ", stage, " of ", machine.stages, " stays idle");
    --count[stages[node]];
    stages[node] = stage;
    ++count[stage];
  }
  return stages;
}

}  // namespace smp::partitioning
