// module/running_statistics.h: the layers that average statistics over batches: which they are,
// and where they keep them (docs/design.md, Running statistics). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace smp::module {

/// Running statistics of one BatchNorm or InstanceNorm layer; valid while the layer lives.
struct RunningStatistics {
  at::Tensor* running_mean;
  at::Tensor* running_var;
  at::Tensor* num_batches_tracked;
  /// Returns the weight of a new batch; nothing means the average over all batches.
  std::function<std::optional<double>()> momentum;
  bool counts_batches;  ///< true if num_batches_tracked counts; InstanceNorm leaves it 0
};

/// True if `module` is a layer that may keep running statistics. It depends on the type alone.
bool is_normalisation(const torch::nn::Module& module);

/// Returns the normalisation layers that run with `module`: itself, and those below it that are not
/// in a subtree whose root `apart` accepts.
std::vector<torch::nn::Module*> normalisations_of(
    torch::nn::Module& module, const std::function<bool(torch::nn::Module&)>& apart);

/// Returns the statistics of `layer`; nothing unless it is BatchNorm1d/2d/3d or
/// InstanceNorm1d/2d/3d and tracks statistics.
std::optional<RunningStatistics> as_running_statistics(torch::nn::Module& layer);

}  // namespace smp::module
