// server/modules/weight_watch.h: a step leaves weights as they are; what writes them in its body is
// refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp::server {

/// Watches parameters on this rank. Those of a model that no module is known to write: microbatches
/// compute with them at the same time, and other ranks have others, so an optimizer's step() in the
/// body would be that of a part of the model, between two microbatches by chance. Some of
/// LibTorch's optimizers write through data() or in fused steps, which no version shows, so
/// elements are compared: all of small parameters, a few of large ones. Threads: the rank's.
class WeightWatch {
 public:
  void add(const std::string& path, const at::Tensor& parameter);
  bool empty() const noexcept { return weights_.empty(); }
  void begin_step();
  /// True if `tensor` is one of the parameters, or shares memory with it, and that was written
  /// since begin_step().
  [[nodiscard]] bool has_written(const at::Tensor& tensor) const;
  /// Returns the path of the first one that was written since begin_step(); empty: none was.
  [[nodiscard]] std::string written() const;
  /// What was written to `parameter` so far is meant to be.
  void look_again(const at::Tensor& parameter);
  /// Checks that no parameter was written.
  /// @param rank  this one, for the message
  /// @throws UsageError  one was written since begin_step().
  void refuse_written(GlobalRank rank, int microbatch) const;

 private:
  struct Weight {
    std::string path;
    at::Tensor tensor;
    std::uint64_t look = 0;
  };
  std::vector<Weight> weights_;
};

}  // namespace smp::server
