// checkpoint/module_tensors.cpp: a walk over the tree, since named_parameters() of LibTorch puts
// all parameters before all buffers.
#include "checkpoint/module_tensors.h"

#include <functional>
#include <unordered_map>

namespace smp::checkpoints {
namespace {

using Visit = std::function<void(std::string name, const at::Tensor& tensor)>;

void walk(const torch::nn::Module& module, const std::string& prefix, const Visit& visit) {
  for (const auto& tensors :
       {module.named_parameters(/*recurse=*/false), module.named_buffers(/*recurse=*/false)}) {
    for (const auto& item : tensors) {
      if (item.value().defined()) visit(prefix + item.key(), item.value());
    }
  }
  for (const auto& child : module.named_children()) {
    if (child.value()) walk(*child.value(), prefix + child.key() + ".", visit);
  }
}

}  // namespace

std::vector<NamedTensor> tensors_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  std::unordered_map<const void*, std::size_t> places;
  walk(module, "", [&](std::string name, const at::Tensor& tensor) {
    const auto [found, is_new] = places.emplace(tensor.unsafeGetTensorImpl(), tensors.size());
    if (is_new) tensors.push_back({tensor, {}});
    tensors[found->second].names.push_back(std::move(name));
  });
  return tensors;
}

StateDict dict_of(const torch::nn::Module& module, const std::vector<NamedTensor>& tensors,
                  const std::vector<at::Tensor>& values) {
  std::unordered_map<const void*, const at::Tensor*> value_of;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    value_of[tensors[i].tensor.unsafeGetTensorImpl()] = &values[i];
  }
  StateDict dict;
  walk(module, "", [&](std::string name, const at::Tensor& tensor) {
    const auto& value = *value_of.at(tensor.unsafeGetTensorImpl());
    if (value.defined()) dict.insert(std::move(name), value);
  });
  return dict;
}

}  // namespace smp::checkpoints
