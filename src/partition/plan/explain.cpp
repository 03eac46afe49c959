// partition/plan/explain.cpp: gathers costs, bytes, memory and reasons, by stage and by module.
#include "partition/plan/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "partition/model/cut_bytes.h"
#include "partition/plan/plan_check.h"
#include "partition/plan/plan_reasons.h"

namespace smp::partitioning {
namespace {

const char* source_name(simulate::CostSource source) {
  switch (source) {
    case simulate::CostSource::kCounts:
      return "counts";
    case simulate::CostSource::kEstimated:
      return "operators";
    case simulate::CostSource::kMeasured:
      return "clock";
  }
  return "";
}

StageSummary stage_summary(const StageMemory& memory, const CutBytes& cut) {
  StageSummary stage;
  stage.weights = memory.weights;
  stage.gradients = memory.gradients;
  stage.optimizer = memory.optimizer;
  stage.buffers = memory.buffers;
  stage.activations = memory.activations;
  stage.most_activations = memory.most_activations;
  stage.bytes_in = cut.in;
  stage.bytes_out = cut.out;
  return stage;
}

std::vector<StageSummary> stage_summaries(const PlanFacts& facts) {
  const int pp_size = facts.machine.stages;
  const auto cuts = cut_bytes(facts.trace, facts.stages, facts.machine);
  std::vector<StageSummary> stages;
  for (int stage = 0; stage < pp_size; ++stage) {
    stages.push_back(stage_summary(facts.memory[stage], cuts[stage]));
    if (!facts.machine.memory.empty()) {
      stages.back().memory_limit = facts.machine.memory[stage];
    }
    if (!facts.machine.devices.empty()) stages.back().device = facts.machine.devices[stage];
    if (!facts.machine.places.empty()) stages.back().node = facts.machine.places[stage].node;
  }
  for (const CostNode& node : facts.costs.nodes) {
    stages[facts.stages[node.modules.front()]].cost += node.own;
  }
  return stages;
}

// Modules that are placed as one share its cost by the weights that each brings.
void add_costs(std::vector<PartitionPlan::Row>& rows, const CostTree& costs) {
  for (const CostNode& node : costs.nodes) {
    std::int64_t bytes = 0;
    for (const int module : node.modules) bytes += rows[module].bytes;
    if (bytes == 0) {
      rows[node.modules.front()].cost = node.own;
      continue;
    }
    for (const int module : node.modules) {
      rows[module].cost =
          node.own * static_cast<double>(rows[module].bytes) / static_cast<double>(bytes);
    }
  }
}

PlanSummary::Link link_summary(const simulate::Machine& machine,
                               const simulate::Machine::Link& link) {
  return {link.latency + 2 * machine.handling, link.bytes_per_second};
}

/// Bytes per second of the slowest link between two stages of one node.
double slowest_near(const simulate::Machine& machine) {
  if (machine.stages == 1) return machine.bytes_per_second;
  double slowest = std::numeric_limits<double>::infinity();
  for (int stage = 1; stage < machine.stages; ++stage) {
    for (int other = 0; other < stage; ++other) {
      if (machine.on_network(stage, other)) continue;
      slowest = std::min(slowest, machine.near_bandwidth(stage, other));
    }
  }
  return std::isfinite(slowest) ? slowest : machine.bytes_per_second;
}

PlanReasons reasons_of(const PlanFacts& facts) {
  std::vector<std::int64_t> memory;
  for (const StageMemory& stage : facts.memory) memory.push_back(stage.most());
  return plan_reasons(facts.tree, facts.trace, facts.costs, facts.machine, facts.stages,
                      facts.by_hand, memory);
}

const char* name_of(simulate::StateKind kind) {
  switch (kind) {
    case simulate::StateKind::kCache:
      return "cache";
    case simulate::StateKind::kOrdered:
      return "ordered";
    case simulate::StateKind::kShared:
      return "shared";
  }
  return "";
}

}  // namespace

PartitionPlan explained_plan(const PlanFacts& facts) {
  const int pp_size = facts.machine.stages;
  SMP_ASSERT(static_cast<int>(facts.memory.size()) == pp_size);
  PlanReasons reasons = reasons_of(facts);
  auto rows = plan_of(facts.tree, facts.stages, pp_size).rows();
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].why = std::move(reasons.modules[i]);
  for (const auto& change : facts.trace.state) {
    auto& row = rows[static_cast<std::size_t>(change.module)];
    row.state = name_of(change.kind);
    row.state_what = change.what;
  }
  for (const auto& [module, value] : facts.trace.assumed) {
    auto& row = rows[static_cast<std::size_t>(module)];
    if (!row.state.empty()) continue;
    row.state = "values";
    row.state_what = base::concat("asks for values of tensors, and was given ", value);
  }
  for (const auto& [module, keeps_products] : facts.trace.recomputed) {
    auto& row = rows[static_cast<std::size_t>(module)];
    row.recomputed = true;
    row.keeps_products = keeps_products;
  }
  add_costs(rows, facts.costs);

  PlanSummary summary;
  summary.chosen = facts.chosen;
  summary.others = facts.others;
  summary.costs = source_name(facts.trace.source);
  summary.pipeline = facts.pipeline;
  summary.microbatches = facts.microbatches;
  summary.active_microbatches = facts.active_microbatches;
  summary.cores = facts.machine.cores();
  summary.step_bound = facts.step_bound;
  const auto& machine = facts.machine;
  summary.within_node = link_summary(machine, {machine.latency, slowest_near(machine)});
  if (!machine.places.empty()) summary.across_nodes = link_summary(machine, machine.network);
  summary.stages = stage_summaries(facts);
  for (int i = 0; i < pp_size; ++i) summary.stages[i].why = std::move(reasons.stages[i]);
  return PartitionPlan(pp_size, std::move(rows), std::move(summary));
}

}  // namespace smp::partitioning
