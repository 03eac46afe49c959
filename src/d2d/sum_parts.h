// d2d/sum_parts.h: what each member of a group adds up of many tensors. Threads: the rank's thread
// only.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <vector>

#include "d2d/collective_inbox.h"

namespace smp::d2d {

/// Outside of autograd and of the modes of the caller. Versions are not counted here: one part of a
/// tensor is written while others read another. What anybody else writes is still reported.
struct PlainData {
  c10::InferenceMode normal{false};
  at::AutoDispatchBelowADInplaceOrView no_history;
};

/// Whether a mean of tensors of `dtype` is a sum of terms that are divided before they are added
/// up: a sum of float16 may be infinite where the mean is not. Others are divided once, at the end.
constexpr bool divides_terms(c10::ScalarType dtype) { return dtype == c10::ScalarType::Half; }

/// Tensors as one row of elements, cut into as many parts as there are members.
class SumParts {
 public:
  /// Pieces of the tensors, in their order, that make up a part.
  using Pieces = std::vector<at::Tensor>;

  /// @param tensors  of one dtype, one at least, their elements adjacent
  SumParts(const std::vector<at::Tensor>& tensors, int members);

  /// What the member at `position` adds up; may be empty.
  const Pieces& operator[](int position) const {
    return parts_[static_cast<std::size_t>(position)];
  }
  Pieces& operator[](int position) { return parts_[static_cast<std::size_t>(position)]; }

  /// In which members must agree: the shape of one tensor, the elements of several.
  static CollectiveCall call(const std::vector<at::Tensor>& tensors);
  /// Whether `pieces` are of the shapes and the dtype of the part at `position`.
  bool fit(const Pieces& pieces, int position) const;

 private:
  std::vector<Pieces> parts_;
};

}  // namespace smp::d2d
