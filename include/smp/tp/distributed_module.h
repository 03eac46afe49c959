// smp/tp/distributed_module.h: modules whose parameters are sliced over the ranks of a TP_GROUP
// (paper §5.2, App. I.6).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "smp/detail/export.h"

namespace smp {

/// The part of a tensor that each of T ranks has: an equal part of it along `dim`, in order of
/// tp_rank. Elements of the parts beyond `whole` together are zeros, which nobody saves.
struct ParameterSlice {
  std::int64_t dim = 0;
  std::int64_t whole = 0;
};

/// The base class of all distributed modules, and of yours: derive, register slices, and write
/// forward() with smp/tp/batch_primitives.h.
///
/// Of T = smp::tp_size() ranks each holds 1/T of a sliced parameter and computes with it for the
/// samples of all. So its gradient on one rank is that of all samples of the group, and only the
/// replicas of the slice (RDP_GROUP) add theirs; parameters registered with register_parameter()
/// are whole on every rank, see its own samples, and are added up over the DP_GROUP. Both become
/// what one process gets on the global batch, also where the T ranks are given one batch
/// (`prescaled_batch`). Threads: the rank's.
class SMP_API DistributedModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  ~DistributedModule() override;

  /// Returns the dimension along which the parameter registered as `name` is sliced; nothing if it
  /// is whole.
  std::optional<std::int64_t> slice_dim(const std::string& name) const;
  /// Returns all parameters that are sliced, by name.
  const std::map<std::string, ParameterSlice>& sliced() const noexcept { return sliced_; }
  /// Returns a hash of the whole values that the slice `name` was cut from; 0 if they had none, are
  /// not in the memory of the CPU, or somebody has written to the slice since.
  std::uint64_t origin(const std::string& name) const;
  /// Gives the slice `name` this rank's part of `whole`, whose dtype and device it takes over.
  /// @throws UsageError  no slice has that name, or `whole` has other sizes than what it was cut
  ///                     from.
  void set_whole(const std::string& name, const at::Tensor& whole);

 protected:
  /// Registers as parameter `name` this rank's of T equal parts of `whole` along `dim`: a copy, so
  /// that `whole` may go. Ranks that draw `whole` from the same seed start from the values that one
  /// process starts from.
  /// @throws UsageError  that dimension cannot be divided by T, or no session runs.
  at::Tensor& register_slice(const std::string& name, const at::Tensor& whole, std::int64_t dim,
                             bool requires_grad = true);
  /// Registers a slice for any size along `dim`: each rank gets ceil(n/T) of the n units of `unit`
  /// elements that `whole` has there, and zeros where they run out. Whatever computes with these
  /// zeros must leave their gradients zero, so that optimizers do not change them.
  /// @throws UsageError  `whole` does not consist of units, or no session runs.
  at::Tensor& register_padded_slice(const std::string& name, const at::Tensor& whole,
                                    std::int64_t dim, std::int64_t unit = 1);

  /// Writes the values of some rows of a whole tensor, from row `first` on.
  using FillRows = std::function<void(const at::Tensor& rows, std::int64_t first)>;
  /// Registers a slice as register_slice() does, of a tensor of `sizes` and the default dtype that
  /// is too large to be in memory as a whole: `fill` is given all rows once, in order, some at a
  /// time, and this rank's slice of them is kept. A piece has at least 16 elements if the whole
  /// has, and but for the last a multiple of 16, so that LibTorch's initialisers draw the numbers
  /// that they draw at once.
  /// @param name   of the parameter
  /// @param sizes  of the whole tensor
  /// @param dim    the dimension that is cut
  /// @param fill   writes some rows of it
  /// @param unit   0: that dimension can be divided by T; else as for register_padded_slice()
  /// @throws UsageError  as register_slice() and register_padded_slice()
  at::Tensor& register_drawn_slice(const std::string& name, at::IntArrayRef sizes, std::int64_t dim,
                                   const FillRows& fill, std::int64_t unit = 0);

  /// Makes `whole`, a parameter of the module that this one stands in for (smp/tp/replacement.h),
  /// this rank's slice of it, and registers it. It stays the same tensor for optimizers.
  at::Tensor& adopt_slice(const std::string& name, const at::Tensor& whole, std::int64_t dim);
  /// Registers a parameter of that module as it is. It may be undefined.
  at::Tensor& adopt(const std::string& name, const at::Tensor& whole);

 private:
  std::int64_t slice_size(const std::string& name, at::IntArrayRef sizes, std::int64_t dim) const;
  std::int64_t padded_slice_size(const std::string& name, at::IntArrayRef sizes, std::int64_t dim,
                                 std::int64_t unit) const;
  at::Tensor slice_of(const std::string& name, const at::Tensor& whole, std::int64_t dim) const;
  at::Tensor& register_cut(const std::string& name, at::Tensor slice, std::uint64_t hash_of_whole,
                           const ParameterSlice& of, bool requires_grad);

  /// What a slice was cut from, and what it was then: not every write counts as a version.
  struct Origin {
    std::uint64_t whole = 0;   // hash of the values
    std::uint64_t slice = 0;   // likewise
    std::int64_t version = 0;  // of the slice
  };
  std::map<std::string, ParameterSlice> sliced_;
  std::map<std::string, Origin> origins_;
};

}  // namespace smp
