// smp/state_dict.h: tensors by name, as PyTorch's state_dict() gives them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <initializer_list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "smp/detail/export.h"

namespace torch::nn {
class Module;
}

namespace smp {

/// Tensors by name, in order of insertion. Copies share the tensors. Threads: as std::vector.
class SMP_API StateDict {
 public:
  using Item = std::pair<std::string, at::Tensor>;

  StateDict() = default;
  StateDict(std::initializer_list<Item> items);

  /// Adds a tensor. @throws UsageError  the name is there already, or `tensor` is undefined.
  void insert(std::string name, at::Tensor tensor);
  /// Removes the tensor of that name; returns true if there was one.
  bool erase(const std::string& name);
  bool contains(const std::string& name) const { return places_.count(name) != 0; }
  /// Returns the tensor of that name. @throws UsageError  no tensor has the name.
  const at::Tensor& at(const std::string& name) const;
  /// Returns the names in order of insertion.
  std::vector<std::string> names() const;

  std::size_t size() const noexcept { return items_.size(); }
  bool empty() const noexcept { return items_.empty(); }
  auto begin() const noexcept { return items_.begin(); }
  auto end() const noexcept { return items_.end(); }

  /// The texts that a safetensors file keeps beside the tensors.
  std::map<std::string, std::string> metadata;

 private:
  std::vector<Item> items_;
  std::unordered_map<std::string, std::size_t> places_;
};

/// Returns `dict` with `prefix`, such as "module.", taken from the names that begin with it.
/// Tensors are shared, metadata is copied. @throws UsageError  two tensors would have one name.
SMP_API StateDict without_prefix(const StateDict& dict, const std::string& prefix);
/// Returns `dict` with `prefix` before each name; else as without_prefix().
SMP_API StateDict with_prefix(const StateDict& dict, const std::string& prefix);
/// Returns `dict` with each `part` between the dots of names taken away, such as the "_orig_mod" of
/// compiled modules in "layers.0._orig_mod.weight"; else as without_prefix().
SMP_API StateDict without_part(const StateDict& dict, const std::string& part);

/// The differences that load_state_dict() found: names of the model that the dict does not have,
/// and names of the dict that the model does not have.
struct LoadResult {
  std::vector<std::string> missing_keys;
  std::vector<std::string> unexpected_keys;
};

/// A value for arguments named `pp_rank` that means every rank of the pipeline.
inline constexpr int kAllPpRanks = -1;

/// Returns parameters and buffers of `module` under the names of PyTorch and in its order: for each
/// module its parameters, its buffers, then its submodules. A tensor with several names has them
/// all. The tensors are those of the module, without history: what changes them changes the dict.
/// @throws UsageError  a tensor has no values on this rank: it lives on another (ask the
///                     DistributedModel), or is not initialised yet.
SMP_API StateDict state_dict(const torch::nn::Module& module);

/// Copies the values of `dict` into `module`, as PyTorch does; dtypes are converted, with a warning
/// of what is lost where the module's hold less. For a tensor with several names one of them is
/// enough. An expanded tensor, elements of which share memory, takes values that repeat likewise.
/// Nothing is changed if something is refused.
/// @param module  gets the values
/// @param dict    has them, by name
/// @param strict  names that only one of both has are an error, and so are different values for the
///                names of one tensor (a NaN equals every other); else the last counts.
/// @throws UsageError  listing all missing and unexpected names, shapes that differ, and dtypes
///                     that cannot be converted, with the call that mends names where a prefix is
///                     all that differs; tensors that cannot be written; values that an expanded
///                     tensor cannot hold; tensors without values on this rank, as above.
SMP_API LoadResult load_state_dict(torch::nn::Module& module, const StateDict& dict,
                                   bool strict = true);

}  // namespace smp
