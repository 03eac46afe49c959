// trial/graph/tensor_uses.cpp: see the header.
#include "trial/graph/tensor_uses.h"

#include <cstddef>

namespace smp::partitioning {

using simulate::TensorUse;
using simulate::TensorUseKind;

void TensorUses::add(const std::vector<LiveTensor>& got, const std::vector<LiveTensor>& returned) {
  for (const auto& tensor : returned) add(tensor, TensorUseKind::kResult);
  for (const auto& tensor : got) {
    if (tensor.argument) add(tensor, TensorUseKind::kArgument);
  }
}

void TensorUses::add(const LiveTensor& tensor, TensorUseKind kind) {
  const void* storage = tensor.storage._unsafe_get_target();
  if (tensor.call.number < 0 || known_.weights.count(storage) != 0) return;
  tensor_of(tensor.call.model, storage, tensor.bytes)
      .uses.push_back({0, tensor.bytes, kind, {tensor.call.number, false}});
}

/// Returns the tensor of a model; where it is new, with what keeps it: of the batch the body, which
/// has it anyway.
TensorUses::Tensor& TensorUses::tensor_of(int model, const void* storage, std::int64_t bytes) {
  index_.resize(graph_.traces.size());
  const auto [found, is_new] =
      index_.at(static_cast<std::size_t>(model)).emplace(storage, tensors_.size());
  if (!is_new) return tensors_[found->second];
  auto& tensor = tensors_.emplace_back(Tensor{model, {}});
  constexpr simulate::IntervalId kStart{0, true};
  if (known_.batch.count(storage) != 0) {
    tensor.uses.push_back({0, bytes, TensorUseKind::kKept, kStart});
  }
  const auto kept = kept_.find(storage);
  if (kept == kept_.end()) return tensor;
  for (const auto node : *kept->second) {
    const auto& [keeper, interval] = graph_.intervals[node];
    if (keeper == model) tensor.uses.push_back({0, bytes, TensorUseKind::kKept, interval});
  }
  return tensor;
}

void TensorUses::write() const {
  std::vector<int> numbers(graph_.traces.size());
  for (const auto& tensor : tensors_) {
    if (tensor.uses.size() < 2) continue;
    const auto model = static_cast<std::size_t>(tensor.model);
    const int number = numbers[model]++;
    for (auto use : tensor.uses) {
      use.tensor = number;
      graph_.traces[model].uses.push_back(use);
    }
  }
}

}  // namespace smp::partitioning
