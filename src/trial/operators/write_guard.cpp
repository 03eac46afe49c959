// trial/operators/write_guard.cpp: by storage, so that views and .data() of a weight are noticed
// too.
#include "trial/operators/write_guard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

namespace smp::partitioning {

WriteGuard::WriteGuard(const std::vector<torch::nn::Module*>& modules, const Written& known) {
  for (const auto* module : modules) {
    for (const auto& tensor : module->parameters(/*recurse=*/false)) add(tensor);
    for (const auto& tensor : module->buffers(/*recurse=*/false)) add(tensor);
  }
  for (const void* storage : known) keep(storage);
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
    each_tensor(op.inputs()[argument], [this](const at::Tensor& tensor) {
      if (tensor.has_storage()) keep(tensor.storage().unsafeGetStorageImpl());
    });
  }
}

WriteGuard::Written WriteGuard::written() const {
  Written written;
  for (const auto& [storage, entry] : entries_) {
    if (!entry.values.empty()) written.insert(storage);
  }
  return written;
}

void WriteGuard::keep(const void* storage) {
  const auto found = entries_.find(storage);
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

GradientGuard::GradientGuard(const std::vector<torch::nn::Module*>& modules) {
  const at::NoGradGuard no_grad;
  for (const auto* module : modules) {
    for (const auto& parameter : module->parameters(/*recurse=*/false)) {
      if (!parameter.defined()) continue;
      const auto& gradient = parameter.grad();
      kept_.push_back({parameter, gradient, gradient.defined() ? gradient.clone() : gradient});
    }
  }
}

GradientGuard::~GradientGuard() {
  const at::NoGradGuard no_grad;
  for (auto& [parameter, gradient, values] : kept_) {
    if (!parameter.grad().is_same(gradient)) parameter.mutable_grad() = gradient;
    if (gradient.defined()) gradient.variable_data().copy_(values);
  }
}

}  // namespace smp::partitioning
