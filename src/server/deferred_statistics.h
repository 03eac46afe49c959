// server/deferred_statistics.h: running statistics of normalisation layers, committed in the order
// of one process at the end of the step, so that they do not depend on the schedule
// (docs/design.md, Running statistics).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "module/running_statistics.h"
#include "server/order_key.h"

namespace torch::nn {
class Module;
}

namespace smp::server {

/// Threads: the rank's.
class DeferredStatistics {
 public:
  /// One training execution: while it lives, the layer writes the batch's own statistics into
  /// temporaries (momentum 1). `order`: where it stands within its microbatch.
  class Execution {
   public:
    Execution(DeferredStatistics& owner, module::RunningStatistics statistics, int microbatch,
              OrderKey order);
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

   private:
    DeferredStatistics& owner_;
    module::RunningStatistics statistics_;
    int microbatch_;
    OrderKey order_;
    at::Tensor mean_, variance_, count_;  // the layer's own
    std::optional<double> momentum_;
  };

  /// Nothing if `layer` keeps no running statistics, or is not training.
  static std::optional<module::RunningStatistics> of(torch::nn::Module& layer);

  /// Blends what was collected into the layers, in (microbatch, order) order. Once a step, on a
  /// fiber: it runs LibTorch operators.
  void commit();
  /// Forgets it: the step failed.
  void drop() noexcept { collected_.clear(); }

 private:
  struct Batch {
    int microbatch;
    OrderKey order;
    module::RunningStatistics statistics;
    at::Tensor mean, variance;
  };
  static void blend(const Batch& batch);
  std::vector<Batch> collected_;
};

}  // namespace smp::server
