// partition/memory_model.h: what each stage will hold, before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/module_tree.h"
#include "partition/trace.h"

namespace smp::partition {

/// Bytes of one stage at the worst moment of a step.
struct StageMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;
  std::int64_t buffers = 0;
  std::int64_t activations = 0;  ///< and gradients and messages on their way
  std::int64_t total() const { return weights + gradients + optimizer + buffers + activations; }
};

/// @param stages            of every module of the tree
/// @param peak_activations  of every stage, from simulate()
/// @param optimizer_ratio   optimizer state over trained weights: SGD 0, momentum 1, Adam 2
std::vector<StageMemory> predict_memory(const ModuleTree& tree, const std::vector<int>& stages,
                                        const std::vector<std::int64_t>& peak_activations,
                                        double optimizer_ratio);

}  // namespace smp::partition
