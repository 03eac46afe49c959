// api/planning.cpp: one rank decides; an error there ends every rank.
#include "api/planning.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "api/message_probe.h"
#include "api/runtime.h"
#include "base/check.h"
#include "base/log.h"
#include "base/random.h"
#include "partition/machine.h"
#include "partition/partitioner.h"
#include "partition/plan_cache.h"
#include "partition/plan_check.h"
#include "partition/plan_simulation.h"
#include "report/timeline.h"
#include "report/trace_file.h"
#include "server/exception_text.h"
#include "smp/codec.h"
#include "smp/version.h"

namespace smp {
namespace {

/// Seconds until a message is seen by a rank that must get a core first: what 4 idle ranks on 2
/// cores measure.
constexpr double kLatencyWithoutCore = 800e-6;

/// Hosts with fewer cores than ranks. Ranks of other pipelines get their share of the cores; every
/// host has as many as this one, and every rank computes on the same number of them.
std::vector<partition::Machine::Host> crowded_hosts(const Runtime& runtime) {
  const auto& topology = runtime.topology();
  const double places = static_cast<double>(runtime.cores()) / at::get_num_threads();
  std::map<int, partition::Machine::Host> hosts;  // by first rank
  const auto ranks = topology.group(Group::kPp);
  for (int stage = 0; stage < static_cast<int>(ranks.size()); ++stage) {
    const auto neighbours = topology.group(Group::kLocal, ranks[stage]);
    if (static_cast<double>(neighbours.size()) <= places) continue;
    auto& host = hosts[neighbours.front()];
    host.stages.push_back(stage);
    host.cores += places / static_cast<double>(neighbours.size());
  }
  std::vector<partition::Machine::Host> crowded;
  crowded.reserve(hosts.size());
  for (auto& [rank, host] : hosts) crowded.push_back(std::move(host));
  return crowded;
}

/// On every rank at once: it may measure.
partition::Machine machine_of(Runtime& runtime) {
  const auto& config = runtime.config();
  partition::Machine machine;
  machine.stages = runtime.topology().pp_size();
  machine.speeds = config.stage_speeds;
  for (const double gib : config.stage_memory) {
    machine.memory.push_back(static_cast<std::int64_t>(gib * (1 << 30)));
  }
  if (machine.memory.size() == 1) machine.memory.assign(machine.stages, machine.memory[0]);
  if (runtime.cores() > 0) machine.crowded = crowded_hosts(runtime);
  if (config.trace_repeats > 0) return with_measured_messages(runtime, machine);
  if (!machine.crowded.empty()) machine.latency = kLatencyWithoutCore;
  return machine;
}

/// What pp_rank 0 tells the others.
struct Decision {
  enum class Fault { kNone, kUsage, kResource, kOther };
  Fault fault = Fault::kNone;
  std::string text;
  std::vector<std::string> plans;  // as JSON
};

/// On pp_rank 0.
class Planner {
 public:
  Planner(Runtime& runtime, const std::vector<ModelToPlan>& models, const StepPreview* preview,
          const partition::Machine& machine)
      : runtime_(runtime),
        config_(runtime.config()),
        models_(models),
        preview_(preview),
        machine_(machine),
        pp_size_(runtime.topology().pp_size()),
        cache_(config_.plan_cache) {}

  std::vector<PlannedModel> plans() {
    std::vector<std::optional<PlannedModel>> plans;
    bool trace = false;
    for (const auto& model : models_) {
      plans.push_back(known(model));
      trace = trace || (!plans.back() && is_worth_a_trace(model));
    }
    const auto traces = trace ? traces_of_all() : std::vector<partition::Trace>(models_.size());
    std::vector<PlannedModel> made;
    for (std::size_t i = 0; i < models_.size(); ++i) {
      made.push_back(plans[i] ? *std::move(plans[i]) : make(models_[i], traces[i]));
    }
    return made;
  }

 private:
  static const partition::ModuleTree& tree(const ModelToPlan& model) {
    return model.description->tree;
  }

  std::optional<PlannedModel> known(const ModelToPlan& model) {
    auto plan = from_file(model);
    if (!plan && is_worth_a_trace(model)) plan = from_cache(model);
    return plan;
  }

  std::optional<PlannedModel> from_cache(const ModelToPlan& model) {
    auto plan = cache_.find(key_of(model), tree(model), pp_size_);
    if (!plan) return std::nullopt;
    return PlannedModel{*std::move(plan), simulation_from_cache(model)};
  }

  std::string simulation_from_cache(const ModelToPlan& model) const {
    try {
      auto simulation = cache_.find_simulation(key_of(model));
      if (!simulation.empty()) report::trace_from_json(simulation, "the plan cache");
      return simulation;
    } catch (const Error& error) {
      base::log(base::LogLevel::kWarning,
                "the simulated timeline of an earlier start is not used: ", error.what());
      return {};
    }
  }

  /// A pin of the model itself places everything that has none of its own.
  bool is_worth_a_trace(const ModelToPlan& model) const {
    if (preview_ == nullptr || !config_.auto_partition || config_.skip_tracing) return false;
    const auto pins = pins_of(model);
    return pp_size_ > 1 &&
           std::none_of(pins.begin(), pins.end(), [](const auto& pin) { return pin.path.empty(); });
  }

  std::optional<PlannedModel> from_file(const ModelToPlan& model) {
    if (config_.plan_file.empty()) return std::nullopt;
    auto file = partition::read_plan_file(config_.plan_file);
    if (file.plan) partition::check_plan(*file.plan, tree(model), pp_size_, config_.plan_file);
    if (!file.plan) return std::nullopt;
    return PlannedModel{*std::move(file.plan), {}};
  }

  std::vector<partition::Trace> traces_of_all() {
    std::vector<const ModelDescription*> descriptions;
    for (const auto& model : models_) descriptions.push_back(model.description);
    return trace_models(runtime_, descriptions, *preview_);
  }

  /// @param trace  without calls if modules are counted; such a plan is not worth keeping
  PlannedModel make(const ModelToPlan& model, const partition::Trace& trace) {
    const auto options = options_of(model, trace);
    PlannedModel made{partition::make_plan(tree(model), options), {}};
    made.simulation = simulation(tree(model), options, made.plan);
    if (!trace.calls.empty()) cache_.store(key_of(model), made.plan, made.simulation);
    return made;
  }

  static std::string simulation(const partition::ModuleTree& tree,
                                const partition::PartitionOptions& options,
                                const PartitionPlan& plan) {
    report::StepTimeline timeline;
    timeline.ranks = partition::simulate_plan(tree, options, plan).timeline;
    for (const auto& node : tree.nodes) timeline.module_paths.push_back(node.path);
    timeline.simulated = true;
    return report::trace_to_json(timeline);
  }

  std::vector<partition::Pin> pins_of(const ModelToPlan& model) const {
    auto pins = model.pins;
    if (config_.plan_file.empty()) return pins;
    const auto file = partition::read_plan_file(config_.plan_file);
    pins.insert(pins.end(), file.pins.begin(), file.pins.end());
    return pins;
  }

  partition::PartitionOptions options_of(const ModelToPlan& model, const partition::Trace& trace) {
    partition::PartitionOptions options;
    options.pp_size = pp_size_;
    options.auto_partition = config_.auto_partition;
    options.default_partition = config_.default_partition.value_or(0);
    options.pins = pins_of(model);
    options.trace = trace;
    options.machine = machine_;
    options.strategy = config_.partition_strategy;
    options.memory_weight = config_.memory_weight;
    options.pipeline = config_.pipeline;
    options.microbatches = preview_ != nullptr ? preview_->microbatches : config_.microbatches;
    options.active_microbatches = config_.active_microbatches.value_or(0);
    options.optimizer_ratio = model.optimizer_ratio;
    return options;
  }

  /// Of everything that a plan depends on.
  std::uint64_t key_of(const ModelToPlan& model) const {
    std::string text = base::concat(
        SMP_VERSION, ' ', SMP_TORCH_VERSION, ' ', partition::program_identity(), ' ', pp_size_, ' ',
        config_.partition_strategy, ' ', config_.memory_weight, ' ', config_.trace_repeats, ' ',
        config_.pipeline, ' ', config_.active_microbatches.value_or(0), ' ', preview_->microbatches,
        ' ', preview_->arguments_key(), ' ', preview_->grad, ' ', model.optimizer_ratio);
    for (const auto& host : machine_.crowded) {
      text += base::concat(" cores ", host.cores, " of");
      for (const int stage : host.stages) text += base::concat(' ', stage);
    }
    for (const double speed : config_.stage_speeds) text += base::concat(" speed ", speed);
    for (const double memory : config_.stage_memory) text += base::concat(" memory ", memory);
    for (const auto& pin : pins_of(model))
      text += base::concat(" pin ", pin.path, '=', pin.pp_rank);
    for (const auto* module : model.description->modules) text += module->is_training() ? 't' : 'e';
    const auto hash =
        partition::plan_of(tree(model), std::vector<int>(tree(model).nodes.size(), 0), pp_size_)
            .model_hash();
    return base::mix_key(hash, text);
  }

  Runtime& runtime_;
  const Config& config_;
  const std::vector<ModelToPlan>& models_;
  const StepPreview* preview_;
  const partition::Machine& machine_;
  int pp_size_;
  partition::PlanCache cache_;
};

/// `made` keeps what pp_rank 0 alone needs.
Decision decide(Runtime& runtime, const std::vector<ModelToPlan>& models,
                const StepPreview* preview, const partition::Machine& machine,
                std::vector<PlannedModel>& made) {
  try {
    made = Planner(runtime, models, preview, machine).plans();
    Decision decision;
    for (const auto& model : made) decision.plans.push_back(model.plan.to_json());
    return decision;
  } catch (const UsageError& error) {
    return {Decision::Fault::kUsage, error.what(), {}};
  } catch (const ResourceError& error) {
    return {Decision::Fault::kResource, error.what(), {}};
  } catch (...) {
    return {Decision::Fault::kOther, server::text_of(std::current_exception()), {}};
  }
}

Decision decision_of_first_rank(Runtime& runtime, const std::vector<ModelToPlan>& models,
                                const StepPreview* preview, std::vector<PlannedModel>& made) {
  const auto machine = machine_of(runtime);
  Writer writer;
  if (runtime.topology().pp_rank() == 0) {
    writer.put(decide(runtime, models, preview, machine, made));
  }
  auto packet =
      runtime.server().collectives().broadcast(runtime.pp_ranks(), 0, std::move(writer).take());
  return Reader(packet).get<Decision>();
}

void require_equal_models(Runtime& runtime, const std::vector<ModelToPlan>& models) {
  std::uint64_t model_hash = models.size();
  std::uint64_t pin_hash = 0;
  for (const auto& model : models) {
    const auto& tree = model.description->tree;
    const auto plan = partition::plan_of(tree, std::vector<int>(tree.nodes.size(), 0), 1);
    model_hash = base::mix_key(model_hash, plan.model_hash());
    for (const auto& pin : model.pins) {
      pin_hash =
          base::mix_key(base::mix_key(pin_hash, pin.path), static_cast<std::uint64_t>(pin.pp_rank));
    }
  }
  runtime.require_equal(model_hash, "the model",
                        "build the same model on every rank, before the first step");
  runtime.require_equal(pin_hash, "the plan", "place modules by hand alike on every rank");
}

}  // namespace

std::vector<PlannedModel> make_plans(Runtime& runtime, const std::vector<ModelToPlan>& models,
                                     const StepPreview* preview) {
  require_equal_models(runtime, models);
  std::vector<PlannedModel> made(models.size());
  const auto decision = decision_of_first_rank(runtime, models, preview, made);
  using Fault = Decision::Fault;
  SMP_REQUIRE_AS(UsageError, decision.fault != Fault::kUsage, decision.text);
  SMP_REQUIRE_AS(ResourceError, decision.fault != Fault::kResource, decision.text);
  if (decision.fault == Fault::kOther) throw RemoteError(decision.text, 0);
  SMP_ASSERT(decision.plans.size() == models.size());
  for (std::size_t i = 0; i < models.size(); ++i) {
    made[i].plan = PartitionPlan::from_json(decision.plans[i], "the plan of rank 0");
    partition::check_plan(made[i].plan, models[i].description->tree, runtime.topology().pp_size(),
                          "the plan of rank 0");
  }
  return made;
}

}  // namespace smp
