// partition/memory_model.cpp: sums of what a stage holds. Gradients live as long as their weights.
#include "partition/memory_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace smp::partitioning {

std::int64_t optimizer_bytes(std::int64_t gradient_bytes, double optimizer_ratio) {
  return std::llround(optimizer_ratio * static_cast<double>(gradient_bytes));
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
  for (StageMemory& stage : memory) stage.buffers = tree.common_bytes;
  for (std::size_t i = 0; i < tree.nodes.size(); ++i) {
    StageMemory& stage = memory.at(stages[i]);
    stage.buffers += tree.nodes[i].buffer_bytes;
    for (const OwnParameter& own : tree.nodes[i].parameters) {
      if (counted[own.parameter]) continue;
      counted[own.parameter] = true;
      stage.weights += tree.parameters[own.parameter].bytes;
      stage.gradients += tree.parameters[own.parameter].gradient_bytes;
    }
  }
  for (std::size_t s = 0; s < memory.size(); ++s) {
    memory[s].optimizer = optimizer_bytes(memory[s].gradients, optimizer_ratio);
    memory[s].gradients *= gradient_copies;
    memory[s].activations = activations.usual[s];
    memory[s].most_activations = std::max(activations.usual[s], activations.most[s]);
  }
  return memory;
}

}  // namespace smp::partitioning
