// partition/search/memory_bound.cpp: the bound of the bottleneck, in bytes.
#include "partition/search/memory_bound.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "partition/search/strategies.h"

namespace smp::partitioning {
namespace {

/// Returns the most microbatches that a stage keeps at once, for the stage where it is smallest.
int least_alive(const StepSettings& settings, int stages) {
  int least = settings.microbatches;
  for (int stage = 0; stage < stages; ++stage) {
    least = std::min(least, settings.schedule->most_alive(stage, settings.microbatches));
  }
  return least;
}

}  // namespace

double state_bytes(const CostNode& node, double optimizer_ratio, int gradient_copies) {
  return static_cast<double>(node.weight_bytes + node.buffer_bytes) +
         static_cast<double>(node.gradient_bytes) +
         node.stepped_bytes * (gradient_copies - 1 + optimizer_ratio);
}

double memory_lower_bound(const ModuleTree& tree, const CostTree& costs,
                          const simulate::Machine& machine, const StepSettings& settings) {
  SMP_ASSERT(static_cast<int>(machine.memory.size()) == machine.stages, machine.memory.size());
  simulate::Machine in_bytes = machine;
  in_bytes.speeds.clear();
  for (const std::int64_t limit : machine.memory) {
    if (limit <= tree.common_bytes) return std::numeric_limits<double>::infinity();
    in_bytes.speeds.push_back(static_cast<double>(limit - tree.common_bytes));
  }
  const int alive = least_alive(settings, machine.stages);
  CostTree bytes = costs;
  for (CostNode& node : bytes.nodes) {
    node.own = state_bytes(node, settings.optimizer_ratio, settings.gradient_copies) +
               static_cast<double>(alive) * static_cast<double>(node.activation_bytes);
  }
  return bottleneck_lower_bound(bytes, in_bytes);
}

}  // namespace smp::partitioning
