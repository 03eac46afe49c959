// partition/model/memory_model.h: what each stage will hold, before anything is allocated.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/model/module_tree.h"
#include "simulate/gradient_sums.h"
#include "simulate/trace.h"

namespace smp::partitioning {

/// The memory that one stage is predicted to need, in bytes.
struct StageMemory {
  std::int64_t weights = 0;
  std::int64_t gradients = 0;  ///< with the sums over replicas that are kept beside them
  std::int64_t sums = 0;       ///< the part of `gradients` that is such sums
  std::int64_t optimizer = 0;
  std::int64_t buffers = 0;
  /// Activations, and gradients and messages on their way, at the worst moment of the simulated
  /// step; less those of `gradients` that are not there then, where that was looked at.
  std::int64_t activations = 0;
  /// The same, if all microbatches in flight are at their worst moment on this stage at once.
  std::int64_t most_activations = 0;

  std::int64_t state() const { return weights + gradients + optimizer + buffers; }
  std::int64_t usual() const { return state() + activations; }
  std::int64_t most() const { return state() + most_activations; }
};

/// Bytes of activations by stage, as simulated (StageMemory::activations, most_activations).
struct Activations {
  std::vector<std::int64_t> usual;
  std::vector<std::int64_t> most;
};

/// Returns the gradients that the calls of each module make: of its own weights, of those of
/// modules below it whose calls are not traced, and of others that it reads.
simulate::WeightGradients weight_gradients(const ModuleTree& tree, const simulate::Trace& trace);

/// Returns the bytes of weights, gradients, optimizer state and buffers of a whole model on one
/// stage.
double state_bytes(const ModuleTree& tree, double optimizer_ratio, int gradient_copies = 1);

/// Returns the predicted memory of every stage.
/// @param stages           the stage of every module of the tree
/// @param optimizer_ratio  optimizer state over trained weights: SGD 0, momentum 1, Adam 2
/// @param gradient_copies  how often each gradient is held: itself, and sums over replicas by those
///                         that get them, like the optimizer's state (TreeParameter::state_shares)
std::vector<StageMemory> predict_memory(const ModuleTree& tree, const std::vector<int>& stages,
                                        const Activations& activations, double optimizer_ratio,
                                        int gradient_copies = 1);

}  // namespace smp::partitioning
