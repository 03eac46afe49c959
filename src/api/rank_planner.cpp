// api/rank_planner.cpp: the cheapest source first.
#include "api/rank_planner.h"

#include <algorithm>
#include <utility>

#include "api/plan_key.h"
#include "api/runtime.h"
#include "base/check.h"
#include "base/log.h"
#include "partition/plan_check.h"
#include "partition/plan_simulation.h"
#include "partition/planned_step.h"
#include "report/timeline.h"
#include "report/trace_file.h"

namespace smp {
namespace {

const partitioning::ModuleTree& tree_of(const ModelToPlan& model) {
  return model.description->tree;
}

/// The step that the plan promises, as a trace file.
std::string simulated_timeline(const partitioning::ModuleTree& tree,
                               const partitioning::PartitionOptions& options,
                               const PartitionPlan& plan) {
  report::StepTimeline timeline;
  timeline.ranks = partitioning::simulate_plan(tree, options, plan).timeline;
  for (const auto& node : tree.nodes) timeline.module_paths.push_back(node.path);
  timeline.simulated = true;
  return report::trace_to_json(timeline, partitioning::planned_step(tree, options).to_json());
}

}  // namespace

RankPlanner::RankPlanner(Runtime& runtime, const std::vector<ModelToPlan>& models,
                         const StepPreview* preview, const simulate::Machine& machine)
    : runtime_(runtime),
      config_(runtime.config()),
      models_(models),
      preview_(preview),
      machine_(machine),
      cache_(config_.plan_cache) {}

std::vector<PlannedModel> RankPlanner::plans() {
  std::vector<std::optional<PlannedModel>> plans;
  bool trace = false;
  for (const auto& model : models_) {
    plans.push_back(known(model));
    trace = trace || (!plans.back() && may_keep_state(model));
  }
  const auto traces = trace ? traces_of_all() : std::vector<simulate::Trace>(models_.size());
  std::vector<PlannedModel> made;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    made.push_back(plans[i] ? *std::move(plans[i]) : make(models_[i], traces[i]));
  }
  return made;
}

// ---- what is known -----------------------------------------------------------------------------

std::optional<PlannedModel> RankPlanner::known(const ModelToPlan& model) {
  auto plan = from_file(model);
  if (!plan && is_worth_a_trace(model)) plan = from_cache(model);
  return plan;
}

std::optional<PlannedModel> RankPlanner::from_file(const ModelToPlan& model) const {
  if (config_.plan_file.empty()) return std::nullopt;
  auto file = partitioning::read_plan_file(config_.plan_file);
  if (!file.plan) return std::nullopt;
  partitioning::check_plan(*file.plan, tree_of(model), machine_.stages, config_.plan_file);
  return PlannedModel{*std::move(file.plan), {}, false};
}

std::optional<PlannedModel> RankPlanner::from_cache(const ModelToPlan& model) {
  const auto key = key_of(model);
  auto plan = cache_.find(key, tree_of(model), machine_.stages);
  if (!plan) return std::nullopt;
  return PlannedModel{*std::move(plan), simulation_from_cache(key), true};
}

std::string RankPlanner::simulation_from_cache(std::uint64_t key) const {
  try {
    auto simulation = cache_.find_simulation(key);
    if (!simulation.empty()) report::trace_from_json(simulation, "the plan cache");
    return simulation;
  } catch (const Error& error) {
    base::log(base::LogLevel::kWarning,
              "the simulated timeline of an earlier start is not used: ", error.what());
    return {};
  }
}

// ---- what is made ------------------------------------------------------------------------------

/// Whatever places the modules: which of them keep state decides what placement and order are
/// right.
bool RankPlanner::may_keep_state(const ModelToPlan&) const {
  return preview_ != nullptr && !config_.skip_tracing;
}

/// A pin of the model itself places everything that has none of its own.
bool RankPlanner::is_worth_a_trace(const ModelToPlan& model) const {
  if (preview_ == nullptr || !config_.auto_partition || config_.skip_tracing) return false;
  const auto pins = pins_of(model);
  return machine_.stages > 1 &&
         std::none_of(pins.begin(), pins.end(), [](const auto& pin) { return pin.path.empty(); });
}

std::vector<simulate::Trace> RankPlanner::traces_of_all() {
  std::vector<const ModelDescription*> descriptions;
  for (const auto& model : models_) descriptions.push_back(model.description);
  const bool costs_wanted = std::any_of(models_.begin(), models_.end(), [this](const auto& model) {
    return is_worth_a_trace(model);
  });
  return trace_models(runtime_, descriptions, *preview_, costs_wanted);
}

/// @param traced  without calls if modules are counted; such a plan is not worth keeping
PlannedModel RankPlanner::make(const ModelToPlan& model, const simulate::Trace& traced) {
  simulate::Trace trace;
  if (is_worth_a_trace(model)) {
    trace = traced;
  } else {
    trace.state = traced.state;
  }
  const auto options = options_of(model, trace);
  PlannedModel made{partitioning::make_plan(tree_of(model), options), {}, !traced.calls.empty()};
  made.simulation = simulated_timeline(tree_of(model), options, made.plan);
  if (!trace.calls.empty()) cache_.store(key_of(model), made.plan, made.simulation);
  return made;
}

partitioning::PartitionOptions RankPlanner::options_of(const ModelToPlan& model,
                                                       const simulate::Trace& trace) const {
  SMP_ASSERT(config_.active_microbatches, "the number of stages is known");
  partitioning::PartitionOptions options;
  options.pp_size = machine_.stages;
  options.auto_partition = config_.auto_partition;
  options.default_partition = config_.default_partition.value_or(0);
  options.pins = pins_of(model);
  options.trace = trace;
  options.machine = machine_;
  options.machine.set_processor_share(trace.processor_share);
  options.strategy = config_.partition_strategy;
  options.memory_weight = config_.memory_weight;
  options.pipeline = config_.pipeline;
  options.microbatches = preview_ != nullptr ? preview_->microbatches : config_.microbatches;
  options.active_microbatches = *config_.active_microbatches;
  options.optimizer_ratio = model.optimizer_ratio;
  return options;
}

std::vector<partitioning::Pin> RankPlanner::pins_of(const ModelToPlan& model) const {
  auto pins = model.pins;
  if (config_.plan_file.empty()) return pins;
  const auto file = partitioning::read_plan_file(config_.plan_file);
  pins.insert(pins.end(), file.pins.begin(), file.pins.end());
  return pins;
}

/// Only with a preview.
std::uint64_t RankPlanner::key_of(const ModelToPlan& model) const {
  const auto pins = pins_of(model);
  return plan_key({*model.description, pins, model.optimizer_ratio, *preview_, config_, machine_});
}

}  // namespace smp
