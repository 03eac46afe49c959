// module/running_statistics.h: the layers that average statistics over batches: which they are,
// and where they keep them (docs/design.md, Running statistics). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace torch::nn {
class Module;
}

namespace smp::module {

/// Running statistics of one BatchNorm or InstanceNorm layer; valid while the layer lives.
struct RunningStatistics {
  at::Tensor* running_mean;
  at::Tensor* running_var;
  at::Tensor* num_batches_tracked;
  /// Weight of a new batch; nothing means the average over all batches.
  std::function<std::optional<double>()> momentum;
  std::function<void(std::optional<double>)> set_momentum;
};

/// Whether `module` is a layer that may keep running statistics; constant, by its type.
bool is_normalisation(const torch::nn::Module& module);

/// Nothing unless `layer` is BatchNorm1d/2d/3d or InstanceNorm1d/2d/3d and tracks statistics.
std::optional<RunningStatistics> as_running_statistics(torch::nn::Module& layer);

}  // namespace smp::module
