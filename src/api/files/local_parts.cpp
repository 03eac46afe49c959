// api/files/local_parts.cpp: see the header.
#include "smp/program/local_parts.h"

#include <unordered_map>
#include <unordered_set>

#include "api/model/describe_model.h"
#include "smp/session.h"

namespace smp {

std::vector<std::pair<std::string, torch::nn::Module*>> local_named_modules(
    const DistributedModelBase& model) {
  std::unordered_set<std::string> elsewhere;
  if (model.partitioned()) {
    for (const auto& row : model.plan().rows()) {
      if (row.pp_rank != pp_rank()) elsewhere.insert(row.path);
    }
  }
  std::vector<std::pair<std::string, torch::nn::Module*>> local;
  const auto description = describe_model(model.base_module());
  for (std::size_t i = 0; i < description.modules.size(); ++i) {
    const auto& path = description.tree.nodes[i].path;
    if (elsewhere.count(path) == 0) local.emplace_back(path, description.modules[i]);
  }
  return local;
}

std::vector<torch::nn::Module*> local_modules(const DistributedModelBase& model) {
  std::vector<torch::nn::Module*> modules;
  for (const auto& [path, module] : local_named_modules(model)) modules.push_back(module);
  return modules;
}

std::vector<at::Tensor> local_buffers(const DistributedModelBase& model) {
  std::vector<at::Tensor> buffers;
  for (const auto& [name, buffer] : model.local_named_buffers()) buffers.push_back(buffer);
  return buffers;
}

StateDict cpu(const DistributedModelBase& model) {
  const auto whole = model.state_dict(kAllPpRanks);
  StateDict here;
  here.metadata = whole.metadata;
  std::unordered_map<const void*, at::Tensor> copies;  // a tensor with several names keeps them
  for (const auto& [name, tensor] : whole) {
    auto& copy = copies[tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) copy = tensor.cpu();
    here.insert(name, copy);
  }
  return here;
}

}  // namespace smp
