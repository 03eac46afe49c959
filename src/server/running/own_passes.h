// server/running/own_passes.h: backward passes of LibTorch's own engine that code of a step begins:
// `loss.backward()` in a module, in a hook, or in the backward of a custom function.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct AccumulateGrad;
}

namespace smp::server {

/// Takes the gradients of such passes. Threads: the rank's, inside LibTorch's engine.
class OwnPasses {
 public:
  virtual ~OwnPasses() = default;
  /// Takes `gradient`, which hooks of the tensor have seen and which is about to be added to the
  /// `.grad` of `leaf`.
  /// @return false: LibTorch's engine is to add it, as ever
  virtual bool take(torch::autograd::AccumulateGrad& leaf, const at::Tensor& gradient) = 0;
};

}  // namespace smp::server
