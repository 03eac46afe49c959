// server/modules/weight_watch.h: a step leaves weights as they are; what writes them in its body is
// refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp::server {

/// Watches the parameters of one model on this rank that no module is known to write. Microbatches
/// compute with them at the same time, and other ranks have others: an optimizer's step() in the
/// body would be that of a part of the model, between two microbatches by chance. Some of
/// LibTorch's optimizers write through data(), which no version shows, so a few elements are
/// compared. Threads: the rank's.
class WeightWatch {
 public:
  void add(const std::string& path, const at::Tensor& parameter);
  void begin_step();
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
