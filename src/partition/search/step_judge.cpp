// partition/search/step_judge.cpp: simulation, memory model and bottleneck in one number.
#include "partition/search/step_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "partition/model/replica_sums.h"
#include "partition/search/strategies.h"
#include "simulate/most_activations.h"

namespace smp::partitioning {
namespace {

/// The share of the step time that modules on several stages add to a placement's value at the
/// most, and how many of them add half of that: who reads a plan likes whole blocks, but not at any
/// price.
constexpr double kSplits = 0.015;
constexpr double kSplitsOfHalf = 2;
constexpr double kUnfit = 1e9;
/// Modules up to which all that is computed again is looked at one by one for every placement.
constexpr std::size_t kSmall = 32;
/// The share of its memory from which a stage counts as near its limit, and the share of the step
/// time that a full one adds at the most. The predicted bytes are a bound, so a stage below it has
/// room, and even memory would be of no use.
constexpr double kRoomy = 0.9;
constexpr double kFull = 0.025;

// Seconds that the busiest stage, or the most oversubscribed host, is at work.
double pace(const std::vector<double>& busy, const simulate::Machine& machine) {
  double seconds = *std::max_element(busy.begin(), busy.end());
  for (const auto& host : machine.oversubscribed) {
    double all = 0;
    for (const int stage : host.stages) all += busy[stage];
    seconds = std::max(seconds, all / host.cores);
  }
  return seconds;
}

// From a step of `from` microbatches to one of `to`.
void extrapolate(simulate::SimulatedStep& step, const simulate::Machine& machine,
                 const schedule::Schedule& schedule, int from, int to) {
  const double more = static_cast<double>(to) / from;
  const double longer = (more - 1) * pace(step.busy, machine);
  step.seconds += longer;
  for (auto* moments : {&step.ends, &step.last_backwards}) {
    for (double& moment : *moments) moment += moment > 0 ? longer : 0;
  }
  for (double& busy : step.busy) busy *= more;
  const double busy = std::accumulate(step.busy.begin(), step.busy.end(), 0.0);
  step.bubble = 1 - busy / (static_cast<double>(step.busy.size()) * step.seconds);
  for (std::size_t s = 0; s < step.peak_activations.size(); ++s) {
    const int stage = static_cast<int>(s);
    step.peak_activations[s] = step.peak_activations[s] * schedule.most_alive(stage, to) /
                               schedule.most_alive(stage, from);
  }
  for (auto& count : step.messages) count = count * to / from;
}

// Gradients of weights that a schedule computes later are not final when the last backward begins.
simulate::Machine::Replicas replicas_of_step(const simulate::Machine& machine,
                                             const StepSettings& settings) {
  auto replicas = machine.replicas;
  for (int stage = 0; stage < machine.stages; ++stage) {
    if (schedule::splits_any_backward(*settings.schedule, stage, settings.microbatches)) {
      replicas.bucket_bytes = 0;
    }
  }
  return replicas;
}

// Of one set of gradients.
std::vector<std::int64_t> gradient_bytes(const std::vector<StageMemory>& memory) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(memory.size());
  for (const auto& stage : memory) bytes.push_back(stage.gradients - stage.sums);
  return bytes;
}

std::int64_t missing_bytes(const std::vector<StageMemory>& memory,
                           const simulate::Machine& machine) {
  std::int64_t missing = 0;
  for (std::size_t s = 0; s < machine.memory.size(); ++s) {
    missing = std::max(missing, memory[s].most() - machine.memory[s]);
  }
  return missing;
}

double crowding_of(const std::vector<StageMemory>& memory, const simulate::Machine& machine) {
  double fullest = 0;
  for (std::size_t s = 0; s < machine.memory.size(); ++s) {
    const auto limit = static_cast<double>(machine.memory[s]);
    fullest = std::max(fullest, static_cast<double>(memory[s].most()) / limit);
  }
  return std::clamp((fullest - kRoomy) / (1 - kRoomy), 0.0, 1.0);
}

// Parents come before their children.
int split_modules(const CostTree& costs, const std::vector<int>& stages) {
  std::vector<bool> split(costs.nodes.size(), false);
  for (std::size_t i = costs.nodes.size(); i-- > 1;) {
    const int parent = costs.nodes[i].parent;
    if (split[i] || stages[i] != stages[parent]) split[parent] = true;
  }
  return static_cast<int>(std::count(split.begin(), split.end(), true));
}

}  // namespace

double Judgement::value() const {
  const double balanced = seconds() * std::pow(to_bound, balance_weight);
  const double splits = kSplits * split_modules / (split_modules + kSplitsOfHalf);
  const double readable = balanced * (1 + splits) * (1 + kFull * memory_weight * crowding);
  return fits() ? readable : kUnfit * static_cast<double>(missing) + readable;
}

StepJudge::StepJudge(const ModuleTree& tree, const simulate::Trace& trace, const CostTree& costs,
                     const simulate::Machine& machine, const StepSettings& settings)
    : tree_(tree),
      trace_(trace),
      costs_(costs),
      machine_(machine),
      settings_(settings),
      gradients_(weight_gradients(tree, trace)),
      lower_bound_(bottleneck_lower_bound(costs, machine)) {
  if (settings.recomputable == nullptr || machine.memory.empty()) return;
  choice_.emplace(tree, trace, machine, *settings.recomputable,
                  RecomputeChoice::Step{settings.microbatches, settings.schedule,
                                        settings.optimizer_ratio, settings.gradient_copies});
}

std::int64_t StepJudge::calls_of_microbatch() const {
  return static_cast<std::int64_t>(std::max<std::size_t>(1, trace_.mean_calls()));
}

Judgement StepJudge::judge(const std::vector<int>& stages_of_nodes, int simulated) const {
  return judge(stages_of_nodes, simulated, /*last=*/false);
}

Judgement StepJudge::judge(const std::vector<int>& stages_of_nodes, int simulated,
                           bool last) const {
  if (!choice_) return judge_with(trace_.recomputed, stages_of_nodes, simulated, last);
  const bool small = tree_.nodes.size() <= kSmall;
  const auto stages = stages_of_modules(costs_, stages_of_nodes);
  auto judgement =
      judge_with(choice_->least(stages, last || small), stages_of_nodes, simulated, last);
  for (int stage = 0; stage < machine_.stages && small; ++stage) {
    if (!lacks_for_gradients(judgement, stage)) continue;
    const auto bytes = judgement.memory[static_cast<std::size_t>(stage)].most();
    for (auto& other : choice_->others(stages, stage, judgement.recomputed, bytes)) {
      auto tried = judge_with(std::move(other), stages_of_nodes, simulated, last);
      if (lack(tried, stage) < lack(judgement, stage)) judgement = std::move(tried);
      if (lack(judgement, stage) <= 0) break;
    }
  }
  return judgement;
}

/// Returns the bytes that a stage lacks; negative: it has room.
std::int64_t StepJudge::lack(const Judgement& judgement, int stage) const {
  const auto s = static_cast<std::size_t>(stage);
  return judgement.memory[s].most() - machine_.memory[s];
}

/// True if a stage lacks memory at a moment of the simulated step at which gradients wait beside
/// their sums, which the choice does not know.
bool StepJudge::lacks_for_gradients(const Judgement& judgement, int stage) const {
  const auto& memory = judgement.memory[static_cast<std::size_t>(stage)];
  return lack(judgement, stage) > 0 && memory.activations == memory.most_activations;
}

Judgement StepJudge::judge_with(simulate::RecomputedModules recomputed,
                                const std::vector<int>& stages_of_nodes, int simulated,
                                bool last) const {
  const auto stages = stages_of_modules(costs_, stages_of_nodes);
  const bool with_most = last || !machine_.memory.empty();
  simulate::SimulationOptions options;
  options.microbatches = std::min(simulated, settings_.microbatches);
  options.schedule = settings_.schedule;
  Judgement judgement;
  judgement.recomputed = std::move(recomputed);
  std::optional<simulate::Trace> changed;
  if (judgement.recomputed != trace_.recomputed) {
    changed = trace_;
    changed->recomputed = judgement.recomputed;
  }
  const auto& trace = changed ? *changed : trace_;
  const bool whole = options.microbatches == settings_.microbatches;
  if (with_most && whole) options.gradients = &gradients_;  // some may wait beside their sums
  judgement.step = simulate::simulate(trace, stages, machine_, options);
  extrapolate(judgement.step, machine_, *settings_.schedule, options.microbatches,
              settings_.microbatches);
  judgement.memory =
      predict_memory(tree_, stages, activations(trace, judgement.step, stages, options, with_most),
                     settings_.optimizer_ratio, settings_.gradient_copies);
  if (trace_.source != simulate::CostSource::kCounts) {  // else seconds mean nothing
    judgement.replica_sums = replica_sum_seconds(
        judgement.step, replicas_of_step(machine_, settings_), gradient_bytes(judgement.memory));
  }
  judgement.balance_weight = settings_.balance_weight;
  judgement.to_bound = bottleneck(costs_, stages_of_nodes, machine_) / lower_bound_;
  judgement.split_modules = split_modules(costs_, stages_of_nodes);
  judgement.missing = missing_bytes(judgement.memory, machine_);
  judgement.memory_weight = settings_.memory_weight;
  judgement.crowding = crowding_of(judgement.memory, machine_);
  return judgement;
}

Judgement StepJudge::judge_within(const std::vector<int>& stages_of_nodes,
                                  std::int64_t calls) const {
  const std::int64_t most = std::max<std::int64_t>(1, calls / calls_of_microbatch());
  return judge(stages_of_nodes,
               static_cast<int>(std::min<std::int64_t>(most, settings_.microbatches)), true);
}

Activations StepJudge::activations(const simulate::Trace& trace,
                                   const simulate::SimulatedStep& step,
                                   const std::vector<int>& stages,
                                   const simulate::SimulationOptions& options,
                                   bool with_most) const {
  if (!with_most) return {step.peak_activations, step.peak_activations};
  simulate::SimulationOptions whole = options;
  whole.microbatches = settings_.microbatches;
  return {step.peak_activations, simulate::most_activations(trace, stages, machine_, whole)};
}

}  // namespace smp::partitioning
