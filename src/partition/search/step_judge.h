// partition/search/step_judge.h: what a placement is worth: the simulated time of a step, and
// whether every stage holds what it must.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "partition/model/cost_tree.h"
#include "partition/model/memory_model.h"
#include "partition/search/recompute_choice.h"
#include "simulate/machine.h"
#include "simulate/simulator.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// The step that placements are judged by.
struct StepSettings {
  int microbatches = 1;
  const schedule::Schedule* schedule = nullptr;
  double optimizer_ratio = 2;  ///< optimizer state over trained weights
  /// The weight of evenly spread cost against a short step, 0 to 1: that of memory in the cost
  /// (alpha of equation 1), where nothing is known of times. 0 where the step says what it costs.
  double balance_weight = 0.8;
  int gradient_copies = 1;  ///< how often each gradient is held
  /// What it counts that a stage is near its limit of memory, 0 to 1 (alpha of equation 1).
  double memory_weight = 0.8;
  /// Modules that may be computed again where a stage lacks memory, ascending; nullptr: none.
  const std::vector<int>* recomputable = nullptr;
};

/// The verdict on one placement.
struct Judgement {
  simulate::SimulatedStep step;
  double replica_sums = 0;          ///< seconds from its end until replicas have summed gradients
  std::vector<StageMemory> memory;  ///< by stage
  double to_bound = 1;              ///< bottleneck ÷ its lower bound
  double balance_weight = 0;        ///< as in StepSettings
  double memory_weight = 0;         ///< likewise
  std::int64_t missing = 0;         ///< bytes that the worst stage lacks
  /// How near the fullest stage is to its limit: 0 up to nine tenths of it, 1 at the limit.
  double crowding = 0;
  int split_modules = 0;                   ///< modules whose parts are on several stages
  simulate::RecomputedModules recomputed;  ///< modules whose calls are computed again

  bool fits() const { return missing == 0; }
  /// Seconds until the next step can begin.
  double seconds() const { return step.seconds + replica_sums; }
  /// The value of the placement; smaller is better. It is seconds() times `to_bound` to the power
  /// of `balance_weight`, and a little more for every module whose parts are on several stages and
  /// where a stage is nearly full. A placement that does not fit the memory is worse than every one
  /// that fits.
  double value() const;
};

/// Judges placements by simulation. Refers to its arguments, which must outlive it.
class StepJudge {
 public:
  StepJudge(const ModuleTree& tree, const simulate::Trace& trace, const CostTree& costs,
            const simulate::Machine& machine, const StepSettings& settings);

  /// Simulates at most `simulated` microbatches and adds the others at the pace of the busiest
  /// stage.
  Judgement judge(const std::vector<int>& stages_of_nodes, int simulated) const;

  /// Judges with at most `calls` simulated module calls, as exactly as so many allow. Always fills
  /// in StageMemory::most_activations; judge() does so only if memory is limited.
  Judgement judge_within(const std::vector<int>& stages_of_nodes, std::int64_t calls) const;

  std::int64_t calls_of_microbatch() const;
  const StepSettings& settings() const { return settings_; }

 private:
  Judgement judge(const std::vector<int>& stages_of_nodes, int simulated, bool last) const;
  Judgement judge_with(simulate::RecomputedModules recomputed,
                       const std::vector<int>& stages_of_nodes, int simulated, bool last) const;
  std::int64_t lack(const Judgement& judgement, int stage) const;
  bool lacks_for_gradients(const Judgement& judgement, int stage) const;
  Activations activations(const simulate::Trace& trace, const simulate::SimulatedStep& step,
                          const std::vector<int>& stages,
                          const simulate::SimulationOptions& options, bool with_most) const;

  const ModuleTree& tree_;
  const simulate::Trace& trace_;
  const CostTree& costs_;
  const simulate::Machine& machine_;
  const StepSettings settings_;
  const simulate::WeightGradients gradients_;
  double lower_bound_;
  std::optional<RecomputeChoice> choice_;  // unless nothing may be computed again
};

}  // namespace smp::partitioning
