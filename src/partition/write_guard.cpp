// partition/write_guard.cpp: by storage, so that views and .data() of a weight are noticed too.
#include "partition/write_guard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace smp::partitioning {

WriteGuard::WriteGuard(const std::vector<torch::nn::Module*>& modules) {
  for (const auto* module : modules) {
    for (const auto& tensor : module->parameters(/*recurse=*/false)) add(tensor);
    for (const auto& tensor : module->buffers(/*recurse=*/false)) add(tensor);
  }
}

void WriteGuard::add(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.is_meta()) return;
  auto& tensors = entries_[tensor.storage().unsafeGetStorageImpl()].tensors;
  for (const auto& known : tensors) {
    if (known.is_same(tensor)) return;
  }
  tensors.push_back(tensor);
}

void WriteGuard::before(const at::RecordFunction& op, const OperatorKind& kind) {
  for (const int argument : kind.written) {
    each_tensor(op.inputs()[argument], [this](const at::Tensor& tensor) { keep(tensor); });
  }
}

void WriteGuard::keep(const at::Tensor& written) {
  if (!written.has_storage()) return;
  const auto found = entries_.find(written.storage().unsafeGetStorageImpl());
  if (found == entries_.end() || !found->second.values.empty()) return;
  const at::NoGradGuard no_grad;
  for (const auto& tensor : found->second.tensors) {
    found->second.values.push_back(tensor.detach().clone());
  }
}

WriteGuard::~WriteGuard() {
  const at::NoGradGuard no_grad;
  for (auto& [storage, entry] : entries_) {
    for (std::size_t i = 0; i < entry.values.size(); ++i) {
      entry.tensors[i].variable_data().copy_(entry.values[i]);
    }
  }
}

}  // namespace smp::partitioning
