// server/sums/wide_sums.h: float32 sums behind `.grad` of parameters of 16 bits.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "server/sums/parameter_numbers.h"

namespace smp::server {

/// While a step adds the gradients of one microbatch after the other, what bfloat16 and float16
/// would lose of their sums is kept: each `.grad` is its float32 sum, rounded once. An element of
/// `.grad` that is no more what its sum rounds to was written by somebody, and goes on from its own
/// value. Threads: the rank's.
class WideSums {
 public:
  /// @param wanted  if false, there are none
  explicit WideSums(bool wanted) : wanted_(wanted) {}

  void begin(int microbatches) noexcept { active_ = wanted_ && microbatches > 1; }
  /// Adds `gradient` to the `.grad` of parameter `number`. Returns false if that has to be done as
  /// LibTorch does it: nothing would be lost, or a graph is wanted.
  bool add(ParameterNumber number, const at::Tensor& parameter, const at::Tensor& gradient);
  /// Ends the step.
  void clear() noexcept { sums_.clear(); }

 private:
  const bool wanted_;
  bool active_ = false;
  std::vector<at::Tensor> sums_;  // by number
};

}  // namespace smp::server
