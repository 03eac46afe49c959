// api/replica_gradients.h: which parameters of the session's models replicas average, and when not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "dp/gradient_reducer.h"

namespace smp {

class DistributedModelBase;
class Runtime;

/// Of one rank, whose replicas hold the same parameters, but for slices of distributed modules:
/// their gradients are of the samples of all ranks that hold the others, so only replicas of the
/// slice add theirs, and the sum is divided by the number of all replicas. Threads: the rank's.
class ReplicaGradients {
 public:
  /// How each model's gradients lie here: those of whole parameters, then those of slices.
  using Forms = std::vector<dp::GradientReducer::Forms>;

  explicit ReplicaGradients(Runtime& runtime) : runtime_(runtime) {}

  /// Models were placed, or are gone.
  void forget() { models_.clear(); }
  Forms forms();
  /// A step with gradients begins: what replicas own alone, and has not been zeroed since it was
  /// averaged, counts for all of them.
  void begin_step();
  /// Averages what belongs to models without a NoSync. @param forms  of all replicas
  void reduce(const std::vector<Forms>& forms);
  /// The user did away with gradients.
  void note_zero_grad() noexcept { apart_ = false; }
  /// Whether the last step has left some model's gradients apart.
  bool apart() const noexcept { return apart_; }

 private:
  struct Model {
    const DistributedModelBase* model;
    dp::GradientReducer whole, sliced;
    std::vector<at::Tensor> owned;  // whose gradients are here alone
  };
  void find_models();
  std::vector<std::size_t> replicas_of_slices() const;

  Runtime& runtime_;
  std::vector<Model> models_;      // empty: not known yet
  std::vector<at::Tensor> means_;  // parameters owned here whose gradient is a mean
  bool apart_ = false;
};

}  // namespace smp
