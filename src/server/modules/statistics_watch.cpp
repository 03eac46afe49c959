// server/modules/statistics_watch.cpp: versions of statistics, then and now.
#include "server/modules/statistics_watch.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "module/running_statistics.h"
#include "server/values/tensor_memory.h"

namespace smp::server {
namespace {

/// Returns a number that grows with each update of a layer's running statistics: the versions of
/// mean and counter, since batch norm writes its counter, instance norm only the mean.
std::uint64_t version_of_statistics(torch::nn::Module& layer) {
  const auto statistics = module::as_running_statistics(layer);
  if (!statistics) return 0;
  return std::uint64_t{version_of(*statistics->running_mean)} +
         version_of(*statistics->num_batches_tracked);
}

}  // namespace

StatisticsWatch::StatisticsWatch(const Layers& layers) {
  for (auto* layer : layers) add(layer);
}

void StatisticsWatch::add(torch::nn::Module* layer) {
  layers_.push_back(layer);
  versions_.push_back(version_of_statistics(*layer));
}

void StatisticsWatch::remove(const torch::nn::Module* layer) noexcept {
  const auto found = std::find(layers_.begin(), layers_.end(), layer);
  if (found == layers_.end()) return;
  versions_.erase(versions_.begin() + (found - layers_.begin()));
  layers_.erase(found);
}

void StatisticsWatch::begin_step() {
  versions_.clear();
  for (auto* layer : layers_) versions_.push_back(version_of_statistics(*layer));
}

bool StatisticsWatch::written() const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (version_of_statistics(*layers_[i]) != versions_[i]) return true;
  }
  return false;
}

bool StatisticsWatch::read_after_writing() const {
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    if (layers_[i]->is_training()) continue;
    if (version_of_statistics(*layers_[i]) != versions_[i]) return true;
  }
  return false;
}

}  // namespace smp::server
