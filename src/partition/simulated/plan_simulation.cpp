// partition/simulated/plan_simulation.cpp: the plan's stages under the plan's schedule.
#include "partition/simulated/plan_simulation.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

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

StepMemory simulate_memory(const PartitionPlan& plan, const PlannedStep& step) {
  const auto stages = stages_of(plan, step);
  const auto schedule = schedule::make_schedule(
      step.pipeline, {step.machine.stages, step.microbatches, step.active_microbatches});
  simulate::SimulationOptions options;
  options.microbatches = shown_microbatches(step.trace, step.microbatches);
  options.schedule = schedule.get();
  options.record = true;
  StepMemory memory;
  const auto live_in = [&](const simulate::Trace& trace) {
    auto simulated = simulate::simulate(trace, stages, step.machine, options);
    memory.length =
        std::max(memory.length,
                 static_cast<base::Nanoseconds>(std::llround(simulated.seconds * base::kSecond)));
    return std::move(simulated.live);
  };
  memory.live = live_in(step.trace);
  if (step.trace.recomputed.empty()) return memory;
  auto held = step.trace;
  held.recomputed.clear();
  memory.held = live_in(held);
  return memory;
}

}  // namespace smp::partitioning
