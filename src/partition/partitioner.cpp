// partition/partitioner.cpp: pins first, then the even split of the rest.
#include "partition/partitioner.h"

#include "base/check.h"
#include "base/nearest.h"
#include "partition/even_split.h"
#include "partition/placement_rules.h"
#include "partition/plan_check.h"

namespace smp::partition {
namespace {

using base::concat;

// Stages and reasons that pins give to modules and what is below them.
struct HandPlacement {
  std::vector<int> stages;  // -1: nothing by hand
  std::vector<std::string> reasons;
};

// A pin, checked on its own; a fault if it cannot be followed at all.
std::string fault_of(const Pin& pin, const ModuleTree& tree, int pp_size) {
  const std::string lead =
      concat("stage ", pin.pp_rank, " for \"", pin.path, "\" (", pin.origin, ")");
  if (tree.find(pin.path) < 0) {
    return concat(lead, ": the model has no such module",
                  base::did_you_mean(pin.path, tree.all_paths()));
  }
  if (pin.pp_rank < 0 || pin.pp_rank >= pp_size) {
    return concat(lead, ": there are ", pp_size, " stages, numbered from 0");
  }
  return {};
}

HandPlacement follow_pins(const ModuleTree& tree, const PartitionOptions& options) {
  std::vector<std::string> faults;
  HandPlacement hand{std::vector<int>(tree.nodes.size(), -1),
                     std::vector<std::string>(tree.nodes.size())};
  for (const Pin& pin : options.pins) {
    const std::string fault = fault_of(pin, tree, options.pp_size);
    if (!fault.empty()) {
      faults.push_back(fault);
      continue;
    }
    const int node = tree.find(pin.path);
    hand.stages[node] = pin.pp_rank;
    hand.reasons[node] = concat("placed by ", pin.origin);
  }
  if (!faults.empty()) throw UsageError(list_of_faults("placement by hand", faults));
  for (std::size_t i = 1; i < tree.nodes.size(); ++i) {
    const int parent = tree.nodes[i].parent;
    if (hand.stages[i] >= 0 || hand.stages[parent] < 0) continue;
    hand.stages[i] = hand.stages[parent];
    hand.reasons[i] = hand.reasons[parent];
  }
  return hand;
}

// Everything without a pin goes to one stage; modules that cannot leave their parent go with it.
void fill_default(const ModuleTree& tree, int stage, HandPlacement& hand) {
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    if (hand.stages[i] >= 0) continue;
    const ModuleNode& node = tree.nodes[i];
    const int parent_stage = node.parent < 0 ? 0 : hand.stages[node.parent];
    hand.stages[i] = node.movable() ? stage : parent_stage;
    if (node.movable()) hand.reasons[i] = "default_partition";
  }
}

}  // namespace

PartitionPlan make_plan(const ModuleTree& tree, const PartitionOptions& options) {
  SMP_ASSERT(!tree.nodes.empty());
  HandPlacement hand = follow_pins(tree, options);
  std::vector<int> stages;
  if (options.auto_partition) {
    stages = even_split(tree, hand.stages, options.pp_size);
  } else {
    fill_default(tree, options.default_partition, hand);
    stages = hand.stages;
  }
  const auto faults = placement_faults(tree, stages, options.pp_size, hand.reasons);
  if (!faults.empty()) throw UsageError(list_of_faults("placement by hand", faults));
  return plan_of(tree, stages, options.pp_size);
}

}  // namespace smp::partition
