// api/files/local_parts.cpp: see the header.
#include "smp/program/local_parts.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "api/model/describe_model.h"
#include "base/check.h"
#include "smp/session.h"

namespace smp {
namespace {

/// Returns the name of a buffer of the model. @param call  who asks
std::string name_of_buffer(const DistributedModelBase& model, const at::Tensor& buffer,
                           const char* call) {
  for (const auto& [name, own] : model.named_buffers()) {
    if (own.is_same(buffer)) return name;
  }
  SMP_REQUIRE(false, "rank ", rank(), ": ", call, ": ",
              buffer.defined() ? "the tensor is no buffer of the model" : "the tensor is undefined",
              "; parameters are asked for by model.is_distributed_parameter()");
}

}  // namespace

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

bool is_distributed_buffer(const DistributedModelBase& model, const at::Tensor& buffer) {
  name_of_buffer(model, buffer, "smp::is_distributed_buffer");
  return false;
}

bool is_scaled_batch_buffer(const DistributedModelBase& model, const at::Tensor& buffer) {
  const auto name = name_of_buffer(model, buffer, "smp::is_scaled_batch_buffer");
  const auto modules = model.distributed_modules();
  return std::any_of(modules.begin(), modules.end(), [&](const auto& module) {
    const auto& path = module.first;
    return path.empty() || (name.starts_with(path) && name[path.size()] == '.');
  });
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
