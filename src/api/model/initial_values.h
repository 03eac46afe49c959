// api/model/initial_values.h: replicas begin with the same values (paper §4.5: parameters and
// buffers are broadcast once).
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_set>
#include <vector>

namespace torch::nn {
class Module;
}

namespace smp {

class Rank;

/// Gives one model the same initial values in all replicas. Threads: the rank's.
class InitialValues {
 public:
  /// Before the model is placed; all replicas make one. Suspends.
  InitialValues(const Rank& rank, torch::nn::Module& module);

  /// Gives the tensors of `held`, which this rank holds after placement, the values that they have
  /// in the first replica, unless all replicas were found to have the same. All replicas call it.
  /// Suspends.
  /// @throws as dp::take_values_of
  void take(const std::vector<at::Tensor>& held) const;

 private:
  const Rank& rank_;
  torch::nn::Module& module_;
  std::unordered_set<const void*> equal_;  // parameters, by TensorImpl
};

}  // namespace smp
