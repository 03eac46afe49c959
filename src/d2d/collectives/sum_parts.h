// d2d/collectives/sum_parts.h: what each member of a group adds up of many tensors. Threads: the
// rank's thread only.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#include <cstdint>
#include <vector>

#include "d2d/collectives/collective_inbox.h"

namespace smp::d2d {

/// Works outside of autograd and of the modes of the caller while it lives. Versions are not
/// counted here: one part of a tensor is written while others read another. What anybody else
/// writes is still reported.
struct PlainData {
  c10::InferenceMode normal{false};
  at::AutoDispatchBelowADInplaceOrView no_history;
};

/// True if numbers of `dtype` are added up in float32, and their sum or mean is rounded once: in 16
/// bits it would be rounded with each term, and float16 be infinite where a mean is not.
inline bool sums_wide(c10::ScalarType dtype) { return c10::isReducedFloatingType(dtype); }

/// Tensors in as many parts as there are members. They are of one dtype, at least one, and
/// contiguous.
class SumParts {
 public:
  /// Pieces of the tensors, in their order, that make up a part.
  using Pieces = std::vector<at::Tensor>;

  /// Cuts the tensors, as one row of elements, into equal parts. Every member gets the sums of all.
  SumParts(const std::vector<at::Tensor>& tensors, int members);
  /// Makes parts of whole tensors, by the position of the member that owns them. Nobody else gets
  /// their sums.
  static SumParts of_owners(const std::vector<std::vector<at::Tensor>>& tensors);

  int size() const noexcept { return static_cast<int>(parts_.size()); }
  /// True if every member gets all sums.
  bool for_all() const noexcept { return call_.kind == CollectiveKind::kAllReduce; }
  /// Returns the part that the member at `position` adds up; may be empty.
  const Pieces& operator[](int position) const {
    return parts_[static_cast<std::size_t>(position)];
  }
  Pieces& operator[](int position) { return parts_[static_cast<std::size_t>(position)]; }

  /// The call on which members must agree: the shape of one tensor, the elements of several.
  const CollectiveCall& call() const noexcept { return call_; }
  /// Adds `term` to `sum`, in float32; the first term makes it.
  static void add_wide(Pieces& sum, const Pieces& term);
  /// True if `pieces` are of the shapes and the dtype of the part at `position`.
  bool fit(const Pieces& pieces, int position) const;

 private:
  SumParts(CollectiveKind kind, const std::vector<at::Tensor>& tensors);

  CollectiveCall call_;
  std::vector<Pieces> parts_;
};

}  // namespace smp::d2d
