// tp/slices/sliced_parameters.h: which parameters of a model are slices, of which other ranks hold
// others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "smp/tp/distributed_module.h"

namespace torch::nn {
class Module;
}

namespace smp::tp {

/// The sliced parameters of all distributed modules in a model, at the time of its construction.
/// Threads: the rank's.
class SlicedParameters {
 public:
  explicit SlicedParameters(const torch::nn::Module& model);
  bool contain(const at::Tensor& tensor) const { return find(tensor).has_value(); }
  /// Returns which slice `tensor` is; nothing if it is whole.
  std::optional<ParameterSlice> find(const at::Tensor& tensor) const {
    const auto found = slices_.find(tensor.unsafeGetTensorImpl());
    return found == slices_.end() ? std::nullopt : std::optional(found->second.slice);
  }
  /// Returns the hash of the whole values that `tensor` was cut from, if it still has the values of
  /// then; else 0. Reads the values; the model must be there still.
  std::uint64_t origin(const at::Tensor& tensor) const {
    const auto found = slices_.find(tensor.unsafeGetTensorImpl());
    return found == slices_.end() ? 0 : found->second.module->origin(found->second.name);
  }
  bool empty() const noexcept { return slices_.empty(); }

 private:
  void add(const DistributedModule& module);

  struct Sliced {
    ParameterSlice slice;
    const DistributedModule* module;
    std::string name;  // there
  };
  std::unordered_map<const void*, Sliced> slices_;  // by TensorImpl
};

}  // namespace smp::tp
