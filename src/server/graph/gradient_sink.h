// server/graph/gradient_sink.h: where a backward pass puts the gradients of leaves.
#pragma once

#include "server/graph/special_nodes.h"

namespace smp::server {

/// Receives gradients of leaves, which do not go straight into `.grad` then (docs/design.md,
/// Accumulation).
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Takes the gradient that reached `leaf`; runs the leaf's hooks now or later (the executor does
  /// not). Grad mode is that of the pass.
  virtual void put(torch::autograd::AccumulateGrad& leaf, variable_list&& gradients) = 0;
  /// Called if the gradient of `leaf` is captured (grad()). @throws UsageError  the leaf is not
  /// this rank's.
  virtual void check_capture(torch::autograd::AccumulateGrad& leaf) = 0;
};

}  // namespace smp::server
