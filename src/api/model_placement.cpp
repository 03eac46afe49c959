// api/model_placement.cpp: modules first, then what they hold.
#include "api/model_placement.h"

#include <malloc.h>
#include <torch/nn/module.h>

#include "api/runtime.h"
#include "deferred/delayed_tensors.h"

namespace smp {
namespace {

std::string join(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

void place_modules(Runtime& runtime, const ModelDescription& description,
                   const PartitionPlan& plan) {
  std::vector<RoutedBase*> placed;
  for (std::size_t i = 0; i < description.modules.size(); ++i) {
    auto* module = description.routed[i];
    if (module == nullptr) continue;
    module->smp_place = {-1, PpRank(plan.rows()[i].pp_rank), description.tree.nodes[i].path};
    placed.push_back(module);
  }
  runtime.server().modules().attach_model(placed);
}

}  // namespace

ModelPlacement::ModelPlacement(Runtime& runtime, const ModelDescription& description,
                               const PartitionPlan& plan) {
  place_modules(runtime, description, plan);
  keep_own_tensors(runtime, find_owners(description, plan));
  malloc_trim(0);  // glibc keeps freed pages of small tensors otherwise
}

/// Each parameter and buffer once, under its first name.
std::vector<ModelPlacement::PlacedTensor> ModelPlacement::find_owners(
    const ModelDescription& description, const PartitionPlan& plan) {
  std::vector<PlacedTensor> all;
  for (std::size_t i = 0; i < description.modules.size(); ++i) {
    const PpRank owner(plan.rows()[i].pp_rank);
    const auto& module = *description.modules[i];
    for (const auto& tensors :
         {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
      for (const auto& item : tensors) {
        const auto& tensor = item.value();
        if (!tensor.defined()) continue;
        if (!owners_.emplace(tensor.unsafeGetTensorImpl(), owner).second) continue;
        all.push_back({join(description.tree.nodes[i].path, item.key()), tensor, owner});
      }
    }
  }
  return all;
}

void ModelPlacement::keep_own_tensors(Runtime& runtime, const std::vector<PlacedTensor>& tensors) {
  deferred::Materialiser materialiser;
  for (const auto& [name, tensor, owner] : tensors) materialiser.announce(name, tensor);
  const auto stages = ranks_of(runtime.topology(), Group::kPp);
  for (auto [name, tensor, owner] : tensors) {
    if (owner == runtime.pp_rank()) continue;
    runtime.server().foreign().shrink(name, tensor, stages[owner.index()]);
  }
  for (const auto& [name, tensor, owner] : tensors) {
    if (owner != runtime.pp_rank()) continue;
    materialiser.fill(tensor);
    runtime.server().parameters().place(tensor);
  }
}

bool ModelPlacement::is_on(PpRank stage, const at::Tensor& tensor) const {
  const auto found = owners_.find(tensor.unsafeGetTensorImpl());
  return found != owners_.end() && found->second == stage;
}

}  // namespace smp
