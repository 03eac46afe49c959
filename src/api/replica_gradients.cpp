// api/replica_gradients.cpp: see the header.
#include "api/replica_gradients.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
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
    const auto bytes = runtime_.bucket_bytes();
    models_.push_back(
        {model,
         {runtime_.replicas(), std::move(whole), bytes},
         {runtime_.slice_replicas(), std::move(sliced), bytes, runtime_.num_replicas()}});
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

void ReplicaGradients::reduce(const std::vector<Forms>& forms) {
  const auto same_slices = replicas_of_slices();
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].model->syncs_gradients()) continue;
    std::vector<dp::GradientReducer::Forms> of_whole, of_slices;
    for (const auto& replica : forms) of_whole.push_back(replica.at(2 * i));
    for (const auto replica : same_slices) of_slices.push_back(forms.at(replica).at(2 * i + 1));
    models_[i].whole.reduce(of_whole);
    models_[i].sliced.reduce(of_slices);
  }
}

}  // namespace smp
