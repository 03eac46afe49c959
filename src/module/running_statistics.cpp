// module/running_statistics.cpp: by the types of LibTorch's normalisation layers.
#include "module/running_statistics.h"

#include <c10/util/Type.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <type_traits>
#include <typeinfo>

#include "smp/detail/call.h"

namespace smp::module {
namespace {

template <class Layer>
bool describe(torch::nn::Module& module, std::optional<RunningStatistics>& result) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return false;
  if (!layer->options.track_running_stats() || !layer->running_mean.defined()) return true;
  // An InstanceNorm's momentum is always a number.
  using Momentum = std::remove_cvref_t<decltype(layer->options.momentum())>;
  constexpr bool kCountsBatches = !std::is_same_v<Momentum, double>;
  result = RunningStatistics{
      &layer->running_mean, &layer->running_var, &layer->num_batches_tracked,
      [layer]() -> std::optional<double> { return layer->options.momentum(); }, kCountsBatches};
  return true;
}

template <class... Layer>
struct LayerTypes {
  /// True if `module` is exactly one of the types. A class that a user derives from one is not,
  /// since it may read the statistics where these only write them.
  static bool contain(const torch::nn::Module& module) {
    const auto* routed = dynamic_cast<const RoutedBase*>(&module);
    if (routed == nullptr) return ((typeid(module) == typeid(Layer)) || ...);
    const auto type = routed->smp_type_name();
    return ((type == c10::demangle(typeid(Layer).name())) || ...);
  }
  static std::optional<RunningStatistics> describe_one(torch::nn::Module& module) {
    std::optional<RunningStatistics> result;
    static_cast<void>((describe<Layer>(module, result) || ...));
    return result;
  }
};

using namespace torch::nn;
using Normalisations = LayerTypes<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl,
                                  InstanceNorm1dImpl, InstanceNorm2dImpl, InstanceNorm3dImpl>;

}  // namespace

bool is_normalisation(const torch::nn::Module& module) { return Normalisations::contain(module); }

std::vector<torch::nn::Module*> normalisations_of(
    torch::nn::Module& module, const std::function<bool(torch::nn::Module&)>& apart) {
  std::vector<torch::nn::Module*> found;
  if (is_normalisation(module)) found.push_back(&module);
  for (const auto& child : module.children()) {
    if (apart(*child)) continue;
    const auto below = normalisations_of(*child, apart);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

std::optional<RunningStatistics> as_running_statistics(torch::nn::Module& layer) {
  return Normalisations::describe_one(layer);
}

}  // namespace smp::module
