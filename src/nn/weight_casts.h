// nn/weight_casts.h: weights in the type of autocast, cast once a step. LibTorch's cache has those
// of trained weights, but none of frozen ones and of views.
#pragma once

#include <ATen/core/Tensor.h>

namespace smp::nn {

/// Returns `weight`, [any shape], in the type of autocast if that is on for its device, else
/// `weight` itself. Bits and gradients are those of autocast. Threads: any.
at::Tensor cast_of(const at::Tensor& weight);

/// While one lives, cast_of() keeps what LibTorch does not. Each begins and ends with nothing kept,
/// since weights may have changed. Threads: any; all of the process share what is kept.
class WeightCastsScope {
 public:
  WeightCastsScope();
  ~WeightCastsScope();
  WeightCastsScope(const WeightCastsScope&) = delete;
  WeightCastsScope& operator=(const WeightCastsScope&) = delete;
};

}  // namespace smp::nn
