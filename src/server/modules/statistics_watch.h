// server/modules/statistics_watch.h: which normalisation layers were trained in the current step.
#pragma once

#include <cstdint>
#include <vector>

namespace torch::nn {
class Module;
}

namespace smp::server {

/// The normalisation layers that run with one module, or with the step's body. Threads: the rank's.
class StatisticsWatch {
 public:
  using Layers = std::vector<torch::nn::Module*>;

  StatisticsWatch() = default;
  explicit StatisticsWatch(const Layers& layers);

  void add(torch::nn::Module* layer);
  /// Removes one entry of `layer`, which itself may have ended.
  void remove(const torch::nn::Module* layer) noexcept;
  const Layers& layers() const noexcept { return layers_; }
  void begin_step();
  /// True if running statistics were written since begin_step(), as far as LibTorch counts writes.
  bool written() const;
  /// True if running statistics were written since begin_step() of a layer that is in evaluation
  /// mode now, and so reads them.
  bool read_after_writing() const;

 private:
  Layers layers_;
  std::vector<std::uint64_t> versions_;  // of each when the step began
};

}  // namespace smp::server
