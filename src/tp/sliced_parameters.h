// tp/sliced_parameters.h: which parameters of a model are slices, of which other ranks hold others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <unordered_map>

namespace torch::nn {
class Module;
}

namespace smp::tp {

/// Of all distributed modules in a model, as of its construction. Threads: the rank's.
class SlicedParameters {
 public:
  explicit SlicedParameters(const torch::nn::Module& model);
  bool contain(const at::Tensor& tensor) const {
    return dims_.find(tensor.unsafeGetTensorImpl()) != dims_.end();
  }
  /// The dimension along which `tensor` is sliced; nothing: it is whole.
  std::optional<std::int64_t> dim_of(const at::Tensor& tensor) const {
    const auto found = dims_.find(tensor.unsafeGetTensorImpl());
    return found == dims_.end() ? std::nullopt : std::optional(found->second);
  }
  bool empty() const noexcept { return dims_.empty(); }

 private:
  void add(const torch::nn::Module& module);

  std::unordered_map<const void*, std::int64_t> dims_;  // by TensorImpl
};

}  // namespace smp::tp
