// api/rank_planner.h: how one rank comes to the plans of a session's models: from the plan file,
// from the cache of earlier starts, or by the partitioner, for which it traces the step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/planning.h"
#include "partition/partitioner.h"
#include "partition/plan_cache.h"
#include "simulate/machine.h"
#include "smp/config.h"

namespace smp {

/// On pp_rank 0. Refers to its arguments.
class RankPlanner {
 public:
  RankPlanner(Runtime& runtime, const std::vector<ModelToPlan>& models, const StepPreview* preview,
              const simulate::Machine& machine);

  /// A plan a model. The step's body runs once if some plan is neither in a file nor in the cache.
  /// @throws UsageError, ResourceError  as partitioning::make_plan and check_plan
  std::vector<PlannedModel> plans();

 private:
  // What is known.
  std::optional<PlannedModel> known(const ModelToPlan& model);
  std::optional<PlannedModel> from_file(const ModelToPlan& model) const;
  std::optional<PlannedModel> from_cache(const ModelToPlan& model);
  std::string simulation_from_cache(std::uint64_t key) const;

  // What is made.
  bool may_keep_state(const ModelToPlan& model) const;
  bool is_worth_a_trace(const ModelToPlan& model) const;
  std::vector<simulate::Trace> traces_of_all();
  PlannedModel make(const ModelToPlan& model, const simulate::Trace& traced);
  partitioning::PartitionOptions options_of(const ModelToPlan& model,
                                            const simulate::Trace& trace) const;
  std::vector<partitioning::Pin> pins_of(const ModelToPlan& model) const;
  std::uint64_t key_of(const ModelToPlan& model) const;

  Runtime& runtime_;
  const Config& config_;
  const std::vector<ModelToPlan>& models_;
  const StepPreview* preview_;
  const simulate::Machine& machine_;
  partitioning::PlanCache cache_;
};

}  // namespace smp
