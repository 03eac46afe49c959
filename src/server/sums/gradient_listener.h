// server/sums/gradient_listener.h: who makes use of gradients while the step still runs.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::server {

/// Is told when gradients are final. Threads: the rank's, on fibers. An exception of it fails the
/// step; it must not suspend.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Called when every microbatch has given its gradient to `parameter`, hooks have run, and the
  /// sum is in `.grad`. That is no promise: what follows a body's first backward is added later,
  /// and hooks and bodies can do anything.
  virtual void on_final(const at::Tensor& parameter) = 0;
  /// Called when the user's fiber is free, while other fibers run the step or none does.
  virtual void on_pause() = 0;
};

}  // namespace smp::server
