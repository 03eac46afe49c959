// server/modules/deferred_statistics.h: running statistics of normalisation layers, committed in
// the order of one process at the end of the step, so that they do not depend on the schedule
// (docs/design.md, Running statistics).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "module/running_statistics.h"
#include "server/protocol/order_key.h"

namespace torch::nn {
class Module;
}

namespace smp::server {

/// Collects what training executions add to running statistics, and commits it in the order of one
/// process. Threads: the rank's.
class DeferredStatistics {
 public:
  /// One training execution of a module with the layers that run with it: while its fiber runs, the
  /// layers work on copies of their statistics.
  class Execution {
   public:
    /// @param layers  layers that do not train, or keep no running statistics, are ignored
    Execution(DeferredStatistics& owner, const std::vector<torch::nn::Module*>& layers,
              int microbatch);
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    /// Exchanges the layers' statistics and the copies when the fiber gets the thread (`running`)
    /// or leaves it, because another microbatch may enter the same layers then. Repeated calls do
    /// nothing.
    void on_switch(bool running) noexcept;
    /// Notes what the batches since the last call add to the statistics, at place `order` of the
    /// program. Runs LibTorch operators; @throws only what these throw.
    void collect(const OrderKey& order);
    bool empty() const noexcept { return layers_.empty(); }

   private:
    struct Layer {
      module::RunningStatistics statistics;
      at::Tensor mean, variance, count;  // while the fiber runs the layer's own, else the copies
      at::Tensor first_mean, first_variance;  // what the copies began with
      std::int64_t first_count = 0;
      std::uint32_t first_version = 0;
    };
    static void start(Layer& layer);
    static void swap(Layer& layer) noexcept;

    DeferredStatistics& owner_;
    int microbatch_;
    std::vector<Layer> layers_;
    bool swapped_ = false;  // the layers have the copies
  };

  /// Returns the running statistics of `layer`; nullopt if it keeps none, or is not training.
  static std::optional<module::RunningStatistics> of(torch::nn::Module& layer);

  /// True if one of `layers` is in evaluation mode and would read statistics for which this step
  /// has collected batches that are not committed yet.
  [[nodiscard]] bool are_read_early(const std::vector<torch::nn::Module*>& layers) const;

  /// Blends what was collected into the layers, in (microbatch, order) order. Called once a step,
  /// on a fiber, because it runs LibTorch operators.
  void commit();
  /// Forgets what was collected because the step failed.
  void drop() noexcept { collected_.clear(); }

 private:
  /// The contribution of one or more batches in a row to running statistics; it does not depend on
  /// their values before.
  struct Batches {
    int microbatch;
    OrderKey order;
    module::RunningStatistics statistics;
    std::optional<double> momentum;  // may be another at the end of the step
    std::int64_t number;
    at::Tensor mean, variance;
  };
  static void blend(const Batches& batches);
  std::vector<Batches> collected_;
};

}  // namespace smp::server
