// tp/group/exchange.h: how tensors move between the ranks of a group, along any dimension, and what
// that is in backward (paper §5.2, App. I.6).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "d2d/collectives/communicator.h"

namespace smp::tp {

/// The messages of one rank in a collective.
struct Traffic {
  double bytes = 0;
  int rounds = 0;  ///< rounds of messages to all others, each of which waits for those before
};

/// A collective as a value: each of the T ranks of a group has a tensor of the same shape and
/// dtype.
class Exchange {
 public:
  /// Gives every rank all tensors, one after another along `dim`.
  static Exchange gather(std::int64_t dim) { return {Kind::kGather, dim, dim}; }
  /// Gives rank i the i-th of T equal parts along `dim` of the sum of all tensors.
  static Exchange reduce_scatter(std::int64_t dim) { return {Kind::kReduceScatter, dim, dim}; }
  /// Sends part i along `split_dim` to rank i, which joins the parts it gets along `merge_dim`.
  static Exchange all_to_all(std::int64_t split_dim, std::int64_t merge_dim) {
    return {Kind::kAllToAll, split_dim, merge_dim};
  }
  /// Gives every rank the sum.
  static Exchange sum() { return {Kind::kSum, 0, 0}; }
  /// Moves nothing: every rank keeps its tensor.
  static Exchange identity() { return {Kind::kIdentity, 0, 0}; }
  /// Moves nothing: all ranks have the same tensor, and rank i keeps the i-th of T equal parts
  /// along `dim`.
  static Exchange own_part(std::int64_t dim) { return {Kind::kOwnPart, dim, dim}; }
  /// Gives every rank all parts, one after another along `dim`; all ranks go on with the same
  /// tensor.
  static Exchange join_parts(std::int64_t dim) { return {Kind::kJoinParts, dim, dim}; }

  /// Returns the exchange that carries gradients back. The dual of a sum is the identity, and the
  /// other way round: what follows a sum is the same on all ranks, and counts once (Shoeybi et al.,
  /// Megatron-LM, 2019). So does what follows joined parts.
  Exchange dual() const;
  /// Returns the same exchange for a tensor of `num_dims` dimensions, with none of them counted
  /// from the end.
  /// @throws c10::IndexError if it has no such dimension.
  Exchange of(std::int64_t num_dims) const;
  bool is_identity() const noexcept { return kind_ == Kind::kIdentity; }
  /// Returns what each of `size` ranks sends if its tensor has so many bytes.
  Traffic traffic(int size, double bytes) const noexcept;
  /// Returns the same for the dual, on the gradient of what comes out.
  Traffic traffic_of_dual(int size, double bytes) const noexcept;
  /// The dimension that is cut into T parts, or -1.
  std::int64_t cut_dim() const noexcept;

  /// Carries the exchange out on all ranks of `ranks`; suspends the fiber. Returns a new tensor
  /// without history.
  /// @throws as d2d::Communicator
  at::Tensor run(const d2d::Communicator& ranks, const at::Tensor& tensor) const;
  /// Returns what rank 0 of `size` would get if all ranks had `tensor`, by operators that autograd
  /// knows.
  at::Tensor run_alone(int size, const at::Tensor& tensor) const;

 private:
  enum class Kind : std::uint8_t {
    kGather,
    kReduceScatter,
    kAllToAll,
    kSum,
    kIdentity,
    kOwnPart,
    kJoinParts
  };
  Exchange(Kind kind, std::int64_t split_dim, std::int64_t merge_dim)
      : kind_(kind), split_dim_(split_dim), merge_dim_(merge_dim) {}

  Kind kind_;
  std::int64_t split_dim_;
  std::int64_t merge_dim_;
};

}  // namespace smp::tp
