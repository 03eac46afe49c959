// server/modules/deferred_statistics.cpp: copies during the execution, blending at the end of the
// step.
//
// k batches with statistics s make r' = (1 - m)^k r + S of the running statistic r, where m is the
// momentum and S is the same for every r; with a cumulative average over n batches before,
// r' = (n r + S) / (n + k). So an execution that begins with any r shows what S is.
#include "server/modules/deferred_statistics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <tuple>
#include <utility>

#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Reads the number of batches, 0 if it is undefined. Avoids a LibTorch operator where it can,
/// since it is called at every call of a module with such layers.
std::int64_t value_of(const at::Tensor& count) {
  if (!count.defined()) return 0;
  if (!count.is_cpu() || count.scalar_type() != at::kLong) return count.item<std::int64_t>();
  return *count.const_data_ptr<std::int64_t>();
}

/// Returns the weight that the old value keeps after `number` batches.
double kept(const std::optional<double>& momentum, std::int64_t number, std::int64_t before) {
  if (momentum) {
    return std::pow(1 - *momentum, static_cast<double>(number));
  }
  return static_cast<double>(before) / static_cast<double>(before + number);
}

/// Returns the factor that turns an average into the contribution S: cumulative averages (no
/// momentum) become sums, so that S does not depend on the batches before.
double scale(const std::optional<double>& momentum, std::int64_t batches) {
  return momentum ? 1.0 : static_cast<double>(batches);
}

}  // namespace

std::optional<module::RunningStatistics> DeferredStatistics::of(torch::nn::Module& layer) {
  if (!layer.is_training()) return std::nullopt;
  return module::as_running_statistics(layer);
}

// ---- one execution -----------------------------------------------------------------------------

DeferredStatistics::Execution::Execution(DeferredStatistics& owner,
                                         const std::vector<torch::nn::Module*>& layers,
                                         int microbatch)
    : owner_(owner), microbatch_(microbatch) {
  for (auto* layer : layers) {
    if (auto statistics = of(*layer)) layers_.emplace_back().statistics = std::move(*statistics);
  }
  for (auto& layer : layers_) {
    layer.mean = *layer.statistics.running_mean;
    layer.variance = *layer.statistics.running_var;
    layer.count = *layer.statistics.num_batches_tracked;
    start(layer);
  }
  on_switch(true);
}

DeferredStatistics::Execution::~Execution() { on_switch(false); }

void DeferredStatistics::Execution::on_switch(bool running) noexcept {
  if (std::exchange(swapped_, running) == running) return;
  for (auto& layer : layers_) swap(layer);
}

void DeferredStatistics::Execution::swap(Layer& layer) noexcept {
  std::swap(*layer.statistics.running_mean, layer.mean);
  std::swap(*layer.statistics.running_var, layer.variance);
  std::swap(*layer.statistics.num_batches_tracked, layer.count);
}

/// Makes the layer's own statistics, which are in the members of `layer`, the values to begin with,
/// and puts copies of them into the members, which count writes: in inference mode none would.
void DeferredStatistics::Execution::start(Layer& layer) {
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  layer.first_mean = layer.mean;
  layer.first_variance = layer.variance;
  layer.first_count = value_of(layer.count);
  layer.mean = layer.mean.clone();
  layer.variance = layer.variance.clone();
  if (layer.count.defined()) layer.count = layer.count.clone();
  layer.first_version = version_of(layer.mean);
}

void DeferredStatistics::Execution::collect(const OrderKey& order) {
  const at::NoGradGuard no_grad;
  const bool running = swapped_;
  on_switch(false);
  for (auto& layer : layers_) {
    const auto& statistics = layer.statistics;
    const auto last_count = value_of(layer.count);
    const std::int64_t number = statistics.counts_batches
                                    ? last_count - layer.first_count
                                    : version_of(layer.mean) - layer.first_version;
    if (number <= 0) continue;
    const auto momentum = statistics.momentum();
    const double before = kept(momentum, number, layer.first_count);
    const auto added = [&](const at::Tensor& last, const at::Tensor& first) {
      return (last - first * before) * scale(momentum, last_count);
    };
    owner_.collected_.push_back({microbatch_, order, statistics, momentum, number,
                                 added(layer.mean, layer.first_mean),
                                 added(layer.variance, layer.first_variance)});
    layer.mean = *statistics.running_mean;
    layer.variance = *statistics.running_var;
    layer.count = *statistics.num_batches_tracked;
    start(layer);
  }
  on_switch(running);
}

// ---- the end of the step -----------------------------------------------------------------------

bool DeferredStatistics::are_read_early(const std::vector<torch::nn::Module*>& layers) const {
  if (collected_.empty()) return false;
  for (auto* layer : layers) {
    if (layer->is_training()) continue;
    const auto statistics = module::as_running_statistics(*layer);
    if (!statistics) continue;
    for (const auto& batches : collected_) {
      if (batches.statistics.running_mean == statistics->running_mean) return true;
    }
  }
  return false;
}

void DeferredStatistics::commit() {
  std::stable_sort(collected_.begin(), collected_.end(), [](const Batches& a, const Batches& b) {
    return std::tie(a.microbatch, a.order) < std::tie(b.microbatch, b.order);
  });
  for (const auto& batches : std::exchange(collected_, {})) blend(batches);
}

void DeferredStatistics::blend(const Batches& batches) {
  const at::NoGradGuard no_grad;
  const auto& statistics = batches.statistics;
  auto& count = *statistics.num_batches_tracked;
  const auto before = value_of(count);
  const double weight = kept(batches.momentum, batches.number, before);
  const double share = 1 / scale(batches.momentum, before + batches.number);
  if (statistics.counts_batches && count.defined()) count.add_(batches.number);
  statistics.running_mean->mul_(weight).add_(batches.mean, share);
  statistics.running_var->mul_(weight).add_(batches.variance, share);
}

}  // namespace smp::server
