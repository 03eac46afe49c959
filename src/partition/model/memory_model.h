// partition/model/memory_model.h: what each stage will hold, before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// Bytes of one stage.
struct StageMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;  ///< and sums of them over replicas that are kept beside
  std::int64_t sums = 0;       ///< of `gradients`, these sums
  std::int64_t optimizer = 0;
  std::int64_t buffers = 0;
  /// And gradients and messages on their way: at the worst moment of the simulated step.
  std::int64_t activations = 0;
  /// The same if all microbatches in flight are at their worst here.
  std::int64_t most_activations = 0;

  std::int64_t state() const { return weights + gradients + optimizer + buffers; }
  std::int64_t usual() const { return state() + activations; }
  std::int64_t most() const { return state() + most_activations; }
};

/// Bytes by stage, as simulated.
struct Activations {
  std::vector<std::int64_t> usual;
  std::vector<std::int64_t> most;
};

/// Bytes of weights, gradients, optimizer state and buffers of a whole model, on one stage.
double state_bytes(const ModuleTree& tree, double optimizer_ratio, int gradient_copies = 1);

/// @param stages           of every module of the tree
/// @param optimizer_ratio  optimizer state over trained weights: SGD 0, momentum 1, Adam 2
/// @param gradient_copies  how often each gradient is held: itself, and sums over replicas by those
///                         that get them, like the optimizer's state (TreeParameter::state_shares)
std::vector<StageMemory> predict_memory(const ModuleTree& tree, const std::vector<int>& stages,
                                        const Activations& activations, double optimizer_ratio,
                                        int gradient_copies = 1);

}  // namespace smp::partitioning
