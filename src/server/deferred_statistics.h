// server/deferred_statistics.h: running statistics of normalisation layers, committed in microbatch
// order at the end of the step, so that they do not depend on the schedule (§4.6).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <vector>

#include "module/running_statistics.h"

namespace torch::nn {
class Module;
}

namespace smp::server {

/// Threads: the rank's.
class DeferredStatistics {
 public:
  /// One training execution: while it lives, the layer writes the batch's own statistics into
  /// temporaries (momentum 1).
  class Execution {
   public:
    Execution(DeferredStatistics& owner, module::RunningStatistics statistics, int microbatch,
              int call);
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

   private:
    DeferredStatistics& owner_;
    module::RunningStatistics statistics_;
    int microbatch_;
    int call_;
    at::Tensor mean_, variance_, count_;  // the layer's own
    std::optional<double> momentum_;
  };

  /// Nothing if `layer` keeps no running statistics, or is not training.
  static std::optional<module::RunningStatistics> of(torch::nn::Module& layer);

  /// Blends what was collected into the layers, in (microbatch, call) order.
  void commit();
  void drop() noexcept { collected_.clear(); }

 private:
  struct Batch {
    int microbatch;
    int call;
    module::RunningStatistics statistics;
    at::Tensor mean, variance;
  };
  static void blend(const Batch& batch);
  std::vector<Batch> collected_;
};

}  // namespace smp::server
