// api/optimizer/whole_tensors.h: a model's tensors as files and state dicts have them: whole, where
// this rank holds a slice (paper §5; docs/tensor_parallelism.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/module_tensors.h"
#include "tp/slices/sliced_parameters.h"

namespace smp {

class DistributedModelBase;
class Rank;

/// Maps a model's slices to whole tensors, as they are when it is constructed. Threads: the rank's.
class WholeTensors {
 public:
  WholeTensors(const Rank& rank, const DistributedModelBase& model);

  /// True if some parameters are sliced over several ranks.
  bool any() const noexcept { return any_; }
  /// True if other ranks hold other parts of `parameter`.
  bool is_slice(const at::Tensor& parameter) const { return any_ && slices_.contain(parameter); }
  /// Returns the sizes of the whole of `parameter`.
  std::vector<std::int64_t> sizes(const at::Tensor& parameter) const;
  /// Returns `tensors` with slices replaced by tensors without values that have the sizes of the
  /// whole.
  std::vector<checkpoints::NamedTensor> shapes(std::vector<checkpoints::NamedTensor> tensors) const;
  /// Returns `values`, which have the size of `parameter`, joined with those of the ranks that hold
  /// its other slices; these all call it in the same order. Returns `values` itself if nothing is
  /// sliced. Suspends.
  at::Tensor joined(const at::Tensor& parameter, const at::Tensor& values) const;
  /// Returns the part of `whole` that this rank holds in `parameter`.
  at::Tensor own_part(const at::Tensor& parameter, const at::Tensor& whole) const;

 private:
  const Rank& rank_;
  const tp::SlicedParameters slices_;
  const bool any_;
};

}  // namespace smp
