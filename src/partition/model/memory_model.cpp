// partition/model/memory_model.cpp: sums of what a stage holds. Gradients live as long as their
// weights.
#include "partition/model/memory_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/check.h"

namespace smp::partitioning {

namespace {

/// Returns the bytes of the rank that gets most when whole parameters (in bytes) are dealt out, the
/// largest first, each to the rank that has least so far (dp/shard_plan.h).
double largest_part(std::vector<std::int64_t> parameters, int ranks) {
  if (ranks == 1) {
    return static_cast<double>(
        std::accumulate(parameters.begin(), parameters.end(), std::int64_t{0}));
  }
  std::sort(parameters.begin(), parameters.end(), std::greater<>());
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  for (const auto bytes : parameters) *std::min_element(loads.begin(), loads.end()) += bytes;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end()));
}

/// The parameters of one stage in bytes, grouped by the number of ranks that share their optimizer
/// state.
using Stepped = std::map<int, std::vector<std::int64_t>>;

double largest_part(const Stepped& stepped) {
  double bytes = 0;
  for (const auto& [ranks, parameters] : stepped) bytes += largest_part(parameters, ranks);
  return bytes;
}

}  // namespace

simulate::WeightGradients weight_gradients(const ModuleTree& tree, const simulate::Trace& trace) {
  std::vector<bool> called(tree.nodes.size(), false);
  called[0] = true;
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    for (const auto& call : trace.of_microbatch(i).calls) called.at(call.module) = true;
  }
  simulate::WeightGradients gradients{{}, std::vector<std::vector<int>>(tree.nodes.size())};
  for (const auto& parameter : tree.parameters) gradients.bytes.push_back(parameter.gradient_bytes);
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    std::size_t caller = i;
    while (!called[caller]) caller = static_cast<std::size_t>(tree.nodes[caller].parent);
    for (const auto& own : tree.nodes[i].parameters) {
      gradients.of_module[caller].push_back(own.parameter);
    }
  }
  for (const auto& use : trace.foreign_uses) {
    gradients.of_module.at(use.module).push_back(use.parameter);
  }
  return gradients;
}

double state_bytes(const ModuleTree& tree, double optimizer_ratio, int gradient_copies) {
  const std::vector<int> on_one_stage(tree.nodes.size(), 0);
  return static_cast<double>(
      predict_memory(tree, on_one_stage, {{0}, {0}}, optimizer_ratio, gradient_copies)
          .front()
          .state());
}

std::vector<StageMemory> predict_memory(const ModuleTree& tree, const std::vector<int>& stages,
                                        const Activations& activations, double optimizer_ratio,
                                        int gradient_copies) {
  SMP_ASSERT(stages.size() == tree.nodes.size() &&
             activations.most.size() == activations.usual.size());
  std::vector<StageMemory> memory(activations.usual.size());
  std::vector<bool> counted(tree.parameters.size(), false);
  std::vector<Stepped> stepped(memory.size());
  for (StageMemory& stage : memory) stage.buffers = tree.common_bytes;
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    StageMemory& stage = memory.at(stages[i]);
    stage.buffers += tree.nodes[i].buffer_bytes;
    for (const OwnParameter& own : tree.nodes[i].parameters) {
      if (counted[own.parameter]) continue;
      counted[own.parameter] = true;
      const auto& parameter = tree.parameters[own.parameter];
      stage.weights += parameter.bytes;
      stage.gradients += parameter.gradient_bytes;
      stepped[static_cast<std::size_t>(stages[i])][parameter.state_shares].push_back(
          parameter.gradient_bytes);
    }
  }
  for (std::size_t s = 0; s < memory.size(); ++s) {
    const double kept = largest_part(stepped[s]);  // by the rank that steps most
    memory[s].optimizer = std::llround(optimizer_ratio * kept);
    memory[s].sums = std::llround((gradient_copies - 1) * kept);
    memory[s].gradients += memory[s].sums;
    memory[s].activations = activations.usual[s];
    memory[s].most_activations = std::max(activations.usual[s], activations.most[s]);
  }
  return memory;
}

}  // namespace smp::partitioning
