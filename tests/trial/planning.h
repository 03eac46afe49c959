// What tests of the partitioner ask for, and what they look at.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "partition/search/partitioner.h"
#include "support/model_families.h"
#include "support/refusal.h"

namespace smp::partitioning {

inline PartitionOptions on_stages(int pp_size, std::vector<Pin> pins = {}) {
  PartitionOptions options;
  options.pp_size = pp_size;
  options.pins = std::move(pins);
  options.microbatches = 4;
  options.active_microbatches = 2 * pp_size + 2;
  return options;
}

inline PartitionOptions traced(const SyntheticModel& model, int pp_size, int microbatches) {
  PartitionOptions options = on_stages(pp_size);
  options.trace = model.trace;
  options.microbatches = microbatches;
  return options;
}

/// What make_plan() says when it throws a `Kind`; "accepted" if it does not.
template <class Kind = UsageError>
std::string refusal_of(const ModuleTree& tree, const PartitionOptions& options) {
  return refusal<Kind>([&] { (void)make_plan(tree, options); });
}

inline std::vector<std::int64_t> bytes_per_stage(const PartitionPlan& plan) {
  std::vector<std::int64_t> bytes(plan.pp_size(), 0);
  for (const auto& row : plan.rows()) bytes.at(row.pp_rank) += row.bytes;
  return bytes;
}

}  // namespace smp::partitioning
