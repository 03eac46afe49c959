// api/replica_gradients.cpp: see the header.
#include "api/replica_gradients.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_set>
#include <utility>

#include "api/runtime.h"
#include "smp/distributed_model.h"

namespace smp {

/// What two models share is averaged with the first.
void ReplicaGradients::find_models() {
  std::unordered_set<const void*> seen;
  for (const auto* model : runtime_.models()) {
    if (!model->partitioned()) continue;
    std::vector<at::Tensor> parameters;
    for (auto& parameter : model->local_parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
    }
    models_.push_back(
        {model, {runtime_.replicas(), std::move(parameters), runtime_.bucket_bytes()}});
  }
}

ReplicaGradients::Forms ReplicaGradients::forms() {
  if (models_.empty()) find_models();
  Forms forms;
  for (const auto& [model, reducer] : models_) forms.push_back(reducer.forms());
  return forms;
}

void ReplicaGradients::reduce(const std::vector<Forms>& forms) {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!models_[i].model->syncs_gradients()) continue;
    std::vector<dp::GradientReducer::Forms> of_model;
    for (const auto& replica : forms) of_model.push_back(replica.at(i));
    models_[i].reducer.reduce(of_model);
  }
}

}  // namespace smp
