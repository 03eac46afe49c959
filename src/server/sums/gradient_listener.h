// server/sums/gradient_listener.h: who makes use of gradients while the step still runs.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::server {

/// Threads: the rank's, on fibers. What it throws fails the step; it must not suspend.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Every microbatch has given what it gives to `parameter`, hooks have run, and it is in `.grad`.
  /// That is no promise: what follows a body's first backward is added later, and hooks and bodies
  /// can do anything.
  virtual void on_final(const at::Tensor& parameter) = 0;
  /// The user's fiber has a moment, while others run the step or nobody does.
  virtual void on_pause() = 0;
};

}  // namespace smp::server
