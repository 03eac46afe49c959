// api/replica_gradients.cpp: see the header.
#include "api/replica_gradients.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "api/runtime.h"
#include "smp/distributed_model.h"
#include "tp/sliced_parameters.h"

namespace smp {

/// What two models share is averaged with the first.
void ReplicaGradients::find_models() {
  std::unordered_set<const void*> seen;
  for (const auto* model : runtime_.models()) {
    if (!model->partitioned()) continue;
    const tp::SlicedParameters slices(model->base_module());
    std::vector<at::Tensor> whole, sliced;
    for (auto& parameter : model->local_parameters()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      (slices.contain(parameter) ? sliced : whole).push_back(parameter);
    }
    const auto& shards = runtime_.optimizer_shards();
    std::vector<at::Tensor> owned;
    for (const auto* parameters : {&whole, &sliced}) {
      std::copy_if(parameters->begin(), parameters->end(), std::back_inserter(owned),
                   [&](const auto& parameter) { return shards.is_here(parameter); });
    }
    const auto bytes = runtime_.bucket_bytes();
    const int all = runtime_.num_replicas();
    models_.push_back({model,
                       {runtime_.replicas(), whole, bytes, all, shards.owners_of(whole)},
                       {runtime_.slice_replicas(), sliced, bytes, all, shards.owners_of(sliced)},
                       std::move(owned)});
  }
}

ReplicaGradients::Forms ReplicaGradients::forms() {
  if (models_.empty()) find_models();
  Forms forms;
  for (const auto& model : models_) {
    forms.push_back(model.whole.forms());
    forms.push_back(model.sliced.forms());
  }
  return forms;
}

/// By number among all replicas.
std::vector<std::size_t> ReplicaGradients::replicas_of_slices() const {
  const auto all = runtime_.replicas(), same = runtime_.slice_replicas();
  std::vector<std::size_t> numbers;
  for (const auto rank : same.members()) {
    numbers.push_back(static_cast<std::size_t>(all.members().position(rank)));
  }
  return numbers;
}

void ReplicaGradients::begin_step() {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : std::exchange(means_, {})) {
    if (parameter.grad().defined()) parameter.grad().mul_(runtime_.num_replicas());
  }
}

void ReplicaGradients::reduce(const std::vector<Forms>& forms) {
  const auto same_slices = replicas_of_slices();
  apart_ = false;
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].model->syncs_gradients()) {
      apart_ = true;
      continue;
    }
    std::vector<dp::GradientReducer::Forms> of_whole, of_slices;
    for (const auto& replica : forms) of_whole.push_back(replica.at(2 * i));
    for (const auto replica : same_slices) of_slices.push_back(forms.at(replica).at(2 * i + 1));
    models_[i].whole.reduce(of_whole);
    models_[i].sliced.reduce(of_slices);
    means_.insert(means_.end(), models_[i].owned.begin(), models_[i].owned.end());
  }
}

}  // namespace smp
