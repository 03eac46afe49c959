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

class Runtime;

/// Gives one model the same initial values in all replicas. Threads: the rank's.
class InitialValues {
 public:
  /// Finds out which parameters all replicas have alike, before the model is placed; all replicas
  /// make one. Suspends.
  InitialValues(Runtime& runtime, torch::nn::Module& module);

  /// Gives the tensors of `held`, which this rank holds after placement, the values that they have
  /// in the first replica, unless all replicas were found to have the same. All replicas call it.
  /// Suspends.
  /// @throws as dp::take_values_of
  void take(const std::vector<at::Tensor>& held) const;

 private:
  Runtime& runtime_;
  torch::nn::Module& module_;
  std::unordered_set<const void*> equal_;  // parameters, by TensorImpl
};

}  // namespace smp
