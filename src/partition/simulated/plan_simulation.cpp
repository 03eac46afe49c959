// partition/simulated/plan_simulation.cpp: the plan's stages under the plan's schedule.
#include "partition/simulated/plan_simulation.h"

#include <algorithm>
#include <cstdint>

#include "partition/model/count_trace.h"

namespace smp::partitioning {
namespace {

constexpr std::int64_t kMostCallsDrawn = 200'000;

int shown_microbatches(const simulate::Trace& trace, int microbatches) {
  const auto calls = static_cast<std::int64_t>(trace.mean_calls());
  return static_cast<int>(std::clamp<std::int64_t>(
      kMostCallsDrawn / std::max<std::int64_t>(1, calls), 1, microbatches));
}

}  // namespace

simulate::SimulatedStep simulate_plan(const ModuleTree& tree, const PartitionOptions& options,
                                      const PartitionPlan& plan) {
  const simulate::Trace trace = trace_to_plan(tree, options.trace);
  simulate::Machine machine = options.machine;
  machine.stages = plan.pp_size();
  const auto schedule = schedule::make_schedule(options.pipeline, shape_of(options));
  std::vector<int> stages;
  for (const PartitionPlan::Row& row : plan.rows()) stages.push_back(row.pp_rank);
  simulate::SimulationOptions simulation;
  simulation.microbatches = shown_microbatches(trace, options.microbatches);
  simulation.schedule = schedule.get();
  simulation.record = true;
  return simulate::simulate(trace, stages, machine, simulation);
}

}  // namespace smp::partitioning
