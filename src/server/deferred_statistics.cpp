// server/deferred_statistics.cpp: temporaries during the execution, blending at the end of the
// step.
#include "server/deferred_statistics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

namespace smp::server {

std::optional<module::RunningStatistics> DeferredStatistics::of(torch::nn::Module& layer) {
  if (!layer.is_training()) return std::nullopt;
  return module::as_running_statistics(layer);
}

/// With momentum 1 a layer's new running statistic is the batch's own.
DeferredStatistics::Execution::Execution(DeferredStatistics& owner,
                                         module::RunningStatistics statistics, int microbatch,
                                         OrderKey order)
    : owner_(owner),
      statistics_(std::move(statistics)),
      microbatch_(microbatch),
      order_(std::move(order)),
      mean_(*statistics_.running_mean),
      variance_(*statistics_.running_var),
      count_(*statistics_.num_batches_tracked),
      momentum_(statistics_.momentum()) {
  at::NoGradGuard no_grad;
  *statistics_.running_mean = at::zeros_like(mean_);
  *statistics_.running_var = at::ones_like(variance_);
  if (count_.defined()) *statistics_.num_batches_tracked = count_.clone();
  statistics_.set_momentum(1.0);
}

DeferredStatistics::Execution::~Execution() {
  Batch batch{microbatch_, std::move(order_), statistics_,
              std::exchange(*statistics_.running_mean, mean_),
              std::exchange(*statistics_.running_var, variance_)};
  *statistics_.num_batches_tracked = count_;
  statistics_.set_momentum(momentum_);
  if (std::uncaught_exceptions() == 0) owner_.collected_.push_back(std::move(batch));
}

void DeferredStatistics::commit() {
  std::stable_sort(collected_.begin(), collected_.end(), [](const Batch& a, const Batch& b) {
    return std::tie(a.microbatch, a.order) < std::tie(b.microbatch, b.order);
  });
  for (const auto& batch : std::exchange(collected_, {})) blend(batch);
}

/// What the layer itself does with a momentum, or, without one, as a cumulative average.
void DeferredStatistics::blend(const Batch& batch) {
  at::NoGradGuard no_grad;
  const auto& statistics = batch.statistics;
  double weight = statistics.momentum().value_or(0);
  if (statistics.num_batches_tracked->defined()) {
    statistics.num_batches_tracked->add_(1);
    if (!statistics.momentum()) {
      weight = 1.0 / static_cast<double>(statistics.num_batches_tracked->item<std::int64_t>());
    }
  }
  statistics.running_mean->mul_(1 - weight).add_(batch.mean, weight);
  statistics.running_var->mul_(1 - weight).add_(batch.variance, weight);
}

}  // namespace smp::server
