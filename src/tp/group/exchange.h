// tp/group/exchange.h: how tensors move between the ranks of a group, along any dimension, and what
// that is in backward (paper §5.2, App. I.6).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "d2d/collectives/communicator.h"

namespace smp::tp {

/// What a rank sends in a collective.
struct Traffic {
  double bytes = 0;
  int rounds = 0;  ///< of messages to all others, each of which waits for those before
};

/// A value. Of the T ranks of a group each has a tensor of the same shape and dtype.
class Exchange {
 public:
  /// Everyone gets all tensors, one after another along `dim`.
  static Exchange gather(std::int64_t dim) { return {Kind::kGather, dim, dim}; }
  /// The sum of all, of which rank i gets the i-th of T equal parts along `dim`.
  static Exchange reduce_scatter(std::int64_t dim) { return {Kind::kReduceScatter, dim, dim}; }
  /// Part i along `split_dim` goes to rank i; what comes is joined along `merge_dim`.
  static Exchange all_to_all(std::int64_t split_dim, std::int64_t merge_dim) {
    return {Kind::kAllToAll, split_dim, merge_dim};
  }
  /// Everyone gets the sum.
  static Exchange sum() { return {Kind::kSum, 0, 0}; }
  /// Nothing moves.
  static Exchange identity() { return {Kind::kIdentity, 0, 0}; }
  /// Of what all have alike, rank i keeps the i-th of T equal parts along `dim`. Nothing moves.
  static Exchange own_part(std::int64_t dim) { return {Kind::kOwnPart, dim, dim}; }
  /// Everyone gets all parts, one after another along `dim`, and goes on alike.
  static Exchange join_parts(std::int64_t dim) { return {Kind::kJoinParts, dim, dim}; }

  /// What carries gradients back. That of a sum is the identity, and the other way round: what
  /// follows a sum is the same on all ranks, and counts once (Shoeybi et al., Megatron-LM, 2019).
  /// So does what follows joined parts.
  Exchange dual() const;
  /// The same for a tensor of `num_dims` dimensions: none of them counted from the end.
  /// @throws c10::IndexError if it has no such dimension.
  Exchange of(std::int64_t num_dims) const;
  bool is_identity() const noexcept { return kind_ == Kind::kIdentity; }
  /// Of each of `size` ranks, which has a tensor of so many bytes.
  Traffic traffic(int size, double bytes) const noexcept;
  /// The same of its dual, on the gradient of what comes out.
  Traffic traffic_of_dual(int size, double bytes) const noexcept;
  /// The dimension that is cut into T parts, or -1.
  std::int64_t cut_dim() const noexcept;

  /// On all ranks of `ranks`; suspends the fiber. A new tensor without history.
  /// @throws as d2d::Communicator
  at::Tensor run(const d2d::Communicator& ranks, const at::Tensor& tensor) const;
  /// What rank 0 of `size` would get if all had `tensor`, by operators that autograd knows.
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
