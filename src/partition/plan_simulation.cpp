// partition/plan_simulation.cpp: the plan's stages under the plan's schedule.
#include "partition/plan_simulation.h"

#include <algorithm>
#include <cstdint>

namespace smp::partition {
namespace {

constexpr std::int64_t kMostCallsDrawn = 200'000;

int shown_microbatches(const Trace& trace, int microbatches) {
  const auto calls = static_cast<std::int64_t>(trace.calls.size());
  return static_cast<int>(std::clamp<std::int64_t>(
      kMostCallsDrawn / std::max<std::int64_t>(1, calls), 1, microbatches));
}

}  // namespace

SimulatedStep simulate_plan(const ModuleTree& tree, const PartitionOptions& options,
                            const PartitionPlan& plan) {
  const Trace trace = options.trace.calls.empty() ? count_trace(tree) : options.trace;
  Machine machine = options.machine;
  machine.stages = plan.pp_size();
  const int active =
      options.active_microbatches > 0 ? options.active_microbatches : 2 * machine.stages + 2;
  const auto schedule = schedule::make_schedule(options.pipeline, active);
  std::vector<int> stages;
  for (const PartitionPlan::Row& row : plan.rows()) stages.push_back(row.pp_rank);
  SimulationOptions simulation;
  simulation.microbatches = shown_microbatches(trace, options.microbatches);
  simulation.schedule = schedule.get();
  simulation.record = true;
  return simulate(tree, trace, stages, machine, simulation);
}

}  // namespace smp::partition
