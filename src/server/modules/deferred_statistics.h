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

/// Threads: the rank's.
class DeferredStatistics {
 public:
  /// One training execution of a module and the layers that belong to it: while its fiber runs, the
  /// layers work on copies of their statistics.
  class Execution {
   public:
    /// @param layers  those that do not train, or keep no statistics, are left alone
    Execution(DeferredStatistics& owner, const std::vector<torch::nn::Module*>& layers,
              int microbatch);
    ~Execution();
    Execution(const Execution&) = delete;
    Execution& operator=(const Execution&) = delete;

    /// The fiber gets the thread, or leaves it: then another microbatch may enter the same layers.
    /// Calls repeat.
    void on_switch(bool running) noexcept;
    /// What the layers have seen since the last time stands at `order` in the program. Throws
    /// nothing but what LibTorch does.
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

  /// Nothing if `layer` keeps no running statistics, or is not training.
  static std::optional<module::RunningStatistics> of(torch::nn::Module& layer);

  /// Whether one of `layers` is in evaluation mode, and would read statistics to which batches of
  /// this step were added that are not committed.
  [[nodiscard]] bool are_read_early(const std::vector<torch::nn::Module*>& layers) const;

  /// Blends what was collected into the layers, in (microbatch, order) order. Once a step, on a
  /// fiber: it runs LibTorch operators.
  void commit();
  /// Forgets it: the step failed.
  void drop() noexcept { collected_.clear(); }

 private:
  /// Of one or more batches in a row: what they add to the statistics, whatever these are then.
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
