// api/planning/rank_planner.h: how one rank comes to the plans of a session's models: from the plan
// file, from the cache of earlier starts, or by the partitioner, for which it traces the step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/planning/planning.h"
#include "partition/plan/plan_cache.h"
#include "partition/plan/plan_check.h"
#include "partition/search/partitioner.h"
#include "simulate/machine.h"
#include "smp/config.h"

namespace smp {

/// Makes the plans of a session's models on pp_rank 0. It refers to its arguments.
class RankPlanner {
 public:
  /// @param may_wait  as make_plans
  RankPlanner(Rank& rank, const std::vector<ModelToPlan>& models, const StepPreview* preview,
              const simulate::Machine& machine, bool may_wait);

  /// Returns a plan for each model. The step's body runs once if some plan is not in the cache. A
  /// plan file is a set of pins, for all modules or for some. Several models share the memory of
  /// each stage.
  /// @throws UsageError, ResourceError  as partitioning::make_plan and check_plan
  std::vector<PlannedModel> plans();

 private:
  /// One of the models, and the part of the machine that it may use.
  struct Job {
    const ModelToPlan& model;
    simulate::Machine machine;
    std::vector<partitioning::Pin> pins;
    /// Modules whose calls are computed again, whatever the planner finds.
    simulate::RecomputedModules recomputed;
    bool beside_others;  // which give all stages something to run
  };

  // What is known.
  std::vector<Job> jobs() const;
  std::optional<PlannedModel> known(const Job& job);
  std::string simulation_from_cache(std::uint64_t key) const;

  // What is made.
  bool is_worth_a_trace(const Job& job) const;
  std::optional<std::vector<simulate::Trace>> traces_of_all(const std::vector<Job>& jobs);
  bool waits(const Job& job, const simulate::Trace& trace) const;
  std::vector<PlannedModel> make_all(std::vector<Job>& jobs,
                                     std::vector<std::optional<PlannedModel>> known,
                                     const std::vector<simulate::Trace>& traces);
  PlannedModel make(const Job& job, const simulate::Trace& traced);
  partitioning::PartitionOptions options_of(const Job& job, const simulate::Trace& trace) const;
  std::vector<partitioning::Pin> pins_of(const ModelToPlan& model) const;
  std::uint64_t key_of(const Job& job) const;

  Rank& rank_;
  const Config& config_;
  const std::vector<ModelToPlan>& models_;
  const StepPreview* preview_;
  const simulate::Machine& machine_;
  const bool may_wait_;
  bool one_at_a_time_ = false;  // microbatches, since some model of the session keeps shared state
  partitioning::PlanCache cache_;
};

}  // namespace smp
