// api/planning/planning.h: the plans of a session's models: made on pp_rank 0, the same on all
// ranks (paper §4.5).
#pragma once

#include <string>
#include <vector>

#include "api/model/describe_model.h"
#include "api/planning/tracing.h"
#include "partition/model/pin.h"
#include "smp/plan.h"

namespace smp {

class Rank;
class SharedWarnings;

struct ModelToPlan {
  const ModelDescription* description;
  std::vector<partitioning::Pin> pins;
  double optimizer_ratio = 2;  ///< bytes of optimizer state over bytes of trained weights
  bool beside_placed = false;  ///< other models of the session are placed, and fill the stages
};

struct PlannedModel {
  PartitionPlan plan;
  /// The simulated step of the plan, as report::trace_to_json() writes it; on the rank that made
  /// the plan, and empty for a plan that was read.
  std::string simulation;
  /// True if a trial run showed which modules keep state; on pp_rank 0 of every replica.
  bool state_known = false;
  /// False if the body has nothing to do with the model: it has no plan, and waits for a step that
  /// uses it. What its modules keep is not known before.
  bool used = true;
};

/// Every rank calls it. pp_rank 0 of the first replica reads the plans (plan_file), finds them in
/// the cache of earlier starts, or makes them, and gives them to the others.
/// @param warnings  of this rank, which all print before
/// @param preview  the step that needs the plans, on pp_rank 0: its body is traced. nullptr:
///                 modules are counted.
/// @param may_wait  whether models that the body does not use are left without a plan
/// @throws UsageError     on every rank: models or pins differ between ranks; or what
///                        partitioning::make_plan and check_plan refuse.
/// @throws ResourceError  as partitioning::make_plan, on every rank.
[[nodiscard]] std::vector<PlannedModel> make_plans(Rank& rank, SharedWarnings& warnings,
                                                   const std::vector<ModelToPlan>& models,
                                                   const StepPreview* preview, bool may_wait);

}  // namespace smp
