// partition/simulated/planned_step.h: the step that a plan was made for, as a file keeps it, so
// that it can be simulated again: for another schedule, or for the plan as somebody changed it.
#pragma once

#include <string>
#include <vector>

#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp {

class PartitionPlan;

}  // namespace smp

namespace smp::partitioning {

struct ModuleTree;
struct PartitionOptions;

/// All that simulate() needs, but for the stages of the modules. The trace holds only what
/// simulate() reads.
struct PlannedStep {
  simulate::Trace trace;  ///< modules are numbered by their rows in the plan
  simulate::Machine machine;
  std::string pipeline = "interleaved";
  int microbatches = 1;
  int active_microbatches = 1;

  /// A JSON object, one call a line.
  [[nodiscard]] std::string to_json() const;
  /// @param name  leads the messages: the path of the file
  /// @throws UsageError  broken JSON, missing or wrong members, a caller that does not come first
  [[nodiscard]] static PlannedStep from_json(const std::string& text, const std::string& name);
};

[[nodiscard]] PlannedStep planned_step(const ModuleTree& tree, const PartitionOptions& options);

/// Returns the stage of each module of `plan`, as simulate() takes them.
/// @throws UsageError  the plan is for another number of stages than its step, or has fewer modules
[[nodiscard]] std::vector<int> stages_of(const PartitionPlan& plan, const PlannedStep& step);

}  // namespace smp::partitioning
