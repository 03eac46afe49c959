// api/planning/rank_planner.cpp: the cheapest source first.
#include "api/planning/rank_planner.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include "api/model/checkpoint_modules.h"
#include "api/planning/job_machine.h"
#include "api/planning/memory_shares.h"
#include "api/planning/plan_key.h"
#include "api/rank/rank.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text/progress.h"
#include "partition/model/kept_state.h"
#include "partition/model/memory_model.h"
#include "partition/plan/plan_check.h"
#include "partition/simulated/plan_simulation.h"
#include "partition/simulated/planned_step.h"
#include "report/analysis/step_timeline.h"
#include "report/analysis/trace_file.h"
#include "simulate/device_profile.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {
namespace {

const partitioning::ModuleTree& tree_of(const ModelToPlan& model) {
  return model.description->tree;
}

/// Sums over replicas are kept beside the gradients until the end of the step
/// (dp/early_buckets.h), by all replicas or by those that step the parameter.
int gradient_copies_of(const Rank& rank, const simulate::Machine& machine) {
  const int replicas =
      rank.parts().plan_request ? rank.topology().dp_size() : rank.groups().num_replicas();
  return replicas > 1 && begins_sums_early(rank, machine) ? 2 : 1;
}

/// Where each rank reads samples of its own, a slice's gradient is taken to be of all of them: what
/// code outside of the slice's module makes of it is in the loss of this rank alone.
void warn_of_read_slices(const Rank& rank, const ModelDescription& model,
                         const simulate::Trace& trace) {
  const int ranks = rank.topology().tp_size();
  if (ranks == 1 || rank.config().prescaled_batch || rank.topology().rank() != 0) return;
  const tp::SlicedParameters slices(*model.modules.front());
  if (slices.empty()) return;
  const auto named = model.modules.front()->named_parameters();
  for (const auto& use : trace.foreign_uses) {
    const auto& name = model.tree.parameters.at(static_cast<std::size_t>(use.parameter)).name;
    const auto* const parameter = named.find(name);
    if (parameter == nullptr || !parameter->requires_grad() || !slices.contain(*parameter))
      continue;
    const auto* const reader = model.modules.at(static_cast<std::size_t>(use.module));
    if (dynamic_cast<const DistributedModule*>(reader) != nullptr) continue;  // it knows
    base::log(
        base::LogLevel::kWarning, "parameter '", name, "' is read by ",
        partitioning::quoted_path(model.tree.nodes.at(static_cast<std::size_t>(use.module)).path),
        " or by the step's body, outside of its module: of ", ranks,
        " tensor-parallel ranks each sees a slice there, and a term of the loss made of it "
        "counts 1/",
        ranks, " of what it does in one process; multiply such a term by smp::tp_size()");
  }
}

void warn_of_overruled_pins(const std::vector<partitioning::Pin>& program,
                            const std::vector<partitioning::Pin>& file, const std::string& name) {
  for (auto own = program.begin(); own != program.end(); ++own) {
    const auto& pin = *own;
    const bool outdated = std::any_of(own + 1, program.end(),
                                      [&](const auto& later) { return later.path == pin.path; });
    if (outdated) continue;
    const auto other = std::find_if(file.begin(), file.end(), [&](const auto& of_file) {
      return of_file.path == pin.path && of_file.pp_rank != pin.pp_rank;
    });
    if (other == file.end()) continue;
    base::log(base::LogLevel::kWarning, partitioning::quoted_path(pin.path), " is on stage ",
              other->pp_rank, " as ", name, " has it, not on stage ", pin.pp_rank,
              " as the program (", pin.origin, ") does; take one of the two away");
  }
}

/// True if a model has weights for every stage, so that others need not.
bool fills(const ModelToPlan& model, int stages) {
  std::set<int> pieces;  // by their first weights: what is tied is one
  const auto& nodes = tree_of(model).nodes;
  for (auto node = nodes.begin() + 1; node != nodes.end(); ++node) {
    if (node->movable() && !node->parameters.empty()) {
      pieces.insert(node->parameters[0].parameter);
    }
  }
  return static_cast<int>(pieces.size()) >= stages;
}

bool fits(const PlannedModel& model) {
  const auto& summary = model.plan.summary();
  return !summary || summary->chosen.fits;
}

/// Returns what the program marks, and what the plan file says, which has been checked.
simulate::RecomputedModules recomputed_of(const ModelToPlan& model,
                                          const partitioning::PlanFile& file) {
  auto modules = recomputed_modules(*model.description);
  if (!file.plan) return modules;
  const auto marked = modules;
  for (const auto& row : file.plan->rows()) {
    const int module = tree_of(model).find(row.path);
    if (!row.recomputed || simulate::find_module(marked, module) != nullptr) continue;
    modules.push_back({module, row.keeps_products});
  }
  std::sort(modules.begin(), modules.end());
  return modules;
}

/// Has what the planner chose beside the placement hold for what is simulated of its plan.
void take_choices(partitioning::PartitionOptions& options, const PartitionPlan& plan) {
  options.trace.recomputed.clear();
  for (std::size_t i = 0; i < plan.rows().size(); ++i) {
    const auto& row = plan.rows()[i];
    if (!row.recomputed) continue;
    options.trace.recomputed.push_back({static_cast<int>(i), row.keeps_products});
  }
  const auto& summary = plan.summary();
  if (summary && summary->active_microbatches > 0) {
    options.active_microbatches = summary->active_microbatches;
  }
}

/// Returns the simulated step of the plan, as a trace file.
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

RankPlanner::RankPlanner(Rank& rank, const std::vector<ModelToPlan>& models,
                         const StepPreview* preview, const simulate::Machine& machine,
                         bool may_wait)
    : rank_(rank),
      config_(rank.config()),
      models_(models),
      preview_(preview),
      machine_(machine),
      may_wait_(may_wait),
      cache_(config_.plan_cache) {}

std::vector<PlannedModel> RankPlanner::plans() {
  auto all = jobs();
  std::vector<std::optional<PlannedModel>> plans;
  bool unknown = false;
  for (const Job& job : all) {
    plans.push_back(known(job));
    // What others leave it is not known before they are planned, from the same trace.
    if (all.size() > 1 && plans.back() && !fits(*plans.back())) plans.back().reset();
    unknown = unknown || !plans.back();
  }
  // Whatever places the modules: which of them keep state decides what placement and order are
  // right.
  const bool trace = unknown && preview_ != nullptr && !config_.skip_tracing;
  auto found = trace ? traces_of_all(all) : std::nullopt;
  const bool traced = found.has_value();
  const auto traces = traced ? *std::move(found) : std::vector<simulate::Trace>(all.size());
  // A body that calls nothing in its trial (smp::is_tracing()) says nothing of the step.
  const bool any_used =
      std::any_of(traces.begin(), traces.end(), [](const auto& of_model) { return of_model.used; });
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (traced && any_used && !plans[i] && waits(all[i], traces[i])) {
      plans[i].emplace().used = false;
      continue;
    }
    const auto state = partitioning::all_state(tree_of(all[i].model), traces[i].state);
    one_at_a_time_ |= std::any_of(state.begin(), state.end(), [](const auto& change) {
      return change.kind == simulate::StateKind::kShared;
    });
    if (trace && preview_->grad) {
      warn_of_read_slices(rank_, *all[i].model.description, traces[i]);
    }
  }
  return make_all(all, std::move(plans), traces);
}

// ---- what is known -----------------------------------------------------------------------------

std::vector<RankPlanner::Job> RankPlanner::jobs() const {
  std::vector<double> needs;
  for (const auto& model : models_) {
    needs.push_back(partitioning::state_bytes(tree_of(model), model.optimizer_ratio,
                                              gradient_copies_of(rank_, machine_)));
  }
  std::vector<Job> all;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    const bool beside_others =
        models_[i].beside_placed ||
        std::any_of(models_.begin(), models_.end(), [&](const ModelToPlan& other) {
          return &other != &models_[i] && fills(other, machine_.stages);
        });
    all.push_back({models_[i], with_part_of_memory(machine_, needs, i), pins_of(models_[i]),
                   recomputed_of(models_[i], rank_.parts().plan_file), beside_others});
  }
  return all;
}

std::optional<PlannedModel> RankPlanner::known(const Job& job) {
  if (!is_worth_a_trace(job)) return std::nullopt;
  const auto key = key_of(job);
  auto plan = cache_.find(key, tree_of(job.model), machine_.stages);
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

/// True if a trace would help the plan. A single stage needs none, unless somebody asks how long a
/// step of it takes (`smp plan`). With a pin of the model itself nothing is left to decide,
/// because that places every module that has none of its own. A plan file with a pin for every
/// module is traced, because it asks what comes of it.
bool RankPlanner::is_worth_a_trace(const Job& job) const {
  if (preview_ == nullptr || config_.skip_tracing) return false;
  if (machine_.stages == 1 && !rank_.parts().plan_request) return false;
  const bool whole_plan =
      !config_.plan_file.empty() && job.pins.size() >= tree_of(job.model).nodes.size();
  if (whole_plan) return true;
  return config_.auto_partition && std::none_of(job.pins.begin(), job.pins.end(),
                                                [](const auto& pin) { return pin.path.empty(); });
}

std::optional<std::vector<simulate::Trace>> RankPlanner::traces_of_all(
    const std::vector<Job>& jobs) {
  std::vector<const ModelDescription*> descriptions;
  descriptions.reserve(jobs.size());
  for (const Job& job : jobs) descriptions.push_back(job.model.description);
  const bool costs_wanted = std::any_of(jobs.begin(), jobs.end(),
                                        [this](const Job& job) { return is_worth_a_trace(job); });
  const base::Progress progress("planning: a trial run of the first step");
  return trace_models(rank_, descriptions, *preview_, machine_.sharers, costs_wanted);
}

/// True if nothing is known of a model but that the body does not use it, and there is a choice
/// where its modules go.
bool RankPlanner::waits(const Job& job, const simulate::Trace& trace) const {
  return may_wait_ && !trace.used && tree_of(job.model).can_be_cut();
}

/// Makes the plans that are not known yet. A model that does not fit in its part of the memory gets
/// what the others left.
std::vector<PlannedModel> RankPlanner::make_all(std::vector<Job>& jobs,
                                                std::vector<std::optional<PlannedModel>> known,
                                                const std::vector<simulate::Trace>& traces) {
  const base::Progress progress("planning: comparing splits of the model");
  std::vector<std::size_t> crowded;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    try {
      if (!known[i]) known[i] = make(jobs[i], traces[i]);
      if (jobs.size() == 1 || !known[i]->used || fits(*known[i])) continue;
      known[i].reset();
    } catch (const ResourceError&) {
      if (jobs.size() == 1) throw;
    }
    crowded.push_back(i);
  }
  for (const std::size_t i : crowded) {
    jobs[i].machine.memory = memory_left(machine_, known);
    try {
      known[i] = make(jobs[i], traces[i]);
    } catch (const ResourceError& error) {
      throw ResourceError(base::concat(
          "model ", i, " of the ", jobs.size(),
          " models of this session, which share the stages and their memory: ", error.what()));
    }
  }
  std::vector<PlannedModel> made;
  made.reserve(known.size());
  for (auto& plan : known) made.push_back(*std::move(plan));
  return made;
}

/// Makes and stores one plan.
/// @param traced  without calls if modules are counted; such a plan is not worth storing
PlannedModel RankPlanner::make(const Job& job, const simulate::Trace& traced) {
  simulate::Trace trace;
  if (is_worth_a_trace(job)) {
    trace = traced;
  } else {
    trace.state = traced.state;
  }
  const auto& tree = tree_of(job.model);
  auto options = options_of(job, trace);
  PlannedModel made{partitioning::make_plan(tree, options), {}, !traced.calls_nothing()};
  take_choices(options, made.plan);
  made.simulation = simulated_timeline(tree, options, made.plan);
  if (!trace.calls_nothing()) cache_.store(key_of(job), made.plan, made.simulation);
  return made;
}

partitioning::PartitionOptions RankPlanner::options_of(const Job& job,
                                                       const simulate::Trace& trace) const {
  SMP_ASSERT(config_.active_microbatches, "the number of stages is known");
  partitioning::PartitionOptions options;
  options.pp_size = machine_.stages;
  options.auto_partition = config_.auto_partition;
  options.default_partition = config_.default_partition.value_or(0);
  options.pins = job.pins;
  options.trace = trace;
  options.machine = job.machine;
  options.machine.set_processor_share(trace.processor_share);
  simulate::take_device_speeds(options.machine, trace);
  options.strategy = config_.partition_strategy;
  options.memory_weight = config_.memory_weight;
  options.pipeline = config_.pipeline;
  options.microbatches = preview_ != nullptr ? preview_->microbatches : config_.microbatches;
  options.active_microbatches = *config_.active_microbatches;
  options.optimizer_ratio = job.model.optimizer_ratio;
  options.gradient_copies = gradient_copies_of(rank_, machine_);
  options.trace.recomputed = job.recomputed;
  if (config_.activation_checkpointing == "auto" && preview_ != nullptr && preview_->grad) {
    options.recomputable = recomputable_modules(*job.model.description, trace.state);
  }
  // Whoever reads what modules keep finds what one process would: the runtime lets one microbatch
  // through after the other (api/step/step.cpp), whatever the schedule.
  if (one_at_a_time_) {
    options.pipeline = "interleaved";
    options.active_microbatches = 1;
    options.machine.promised_outputs = false;
  }
  // What a machine has is an estimate of what its ranks may take; a limit that was set is an order.
  options.refuse_unfit = !config_.stage_memory.empty();
  options.may_leave_idle = job.beside_others;
  return options;
}

/// Returns the pins of the program and of the plan file, which is first checked against the model.
std::vector<partitioning::Pin> RankPlanner::pins_of(const ModelToPlan& model) const {
  const auto& file = rank_.parts().plan_file;
  auto pins_of_file = file.pins;
  if (file.plan) {
    partitioning::check_plan(*file.plan, tree_of(model), machine_.stages, config_.plan_file);
    pins_of_file = partitioning::pins_of(*file.plan, config_.plan_file);
  }
  if (rank_.topology().rank() == 0) {
    warn_of_overruled_pins(model.pins, pins_of_file, config_.plan_file);
  }
  if (file.plan) return pins_of_file;
  auto pins = model.pins;
  pins.insert(pins.end(), pins_of_file.begin(), pins_of_file.end());
  return pins;
}

/// Returns the key of a plan in the cache; only with a preview.
std::uint64_t RankPlanner::key_of(const Job& job) const {
  std::string again;
  for (const auto& [module, keeps_products] : job.recomputed) {
    again += base::concat(keeps_products ? " p" : " ", module);
  }
  if (job.beside_others) again += " beside others";
  return base::mix_key(
      plan_key({*job.model.description, job.pins, job.model.optimizer_ratio, *preview_, config_,
                job.machine, gradient_copies_of(rank_, machine_)}),
      again);
}

}  // namespace smp
