// smp/tp/primitives.h: collectives among the ranks of a TP_GROUP, of which autograd knows the
// backward; what distributed modules are made of (paper App. I.6).
//
// T is smp::tp_size(). Every rank of the group calls the same primitives of a module in the same
// order, with tensors of one shape and dtype; nothing is agreed between microbatches or modules,
// which may come in any order on each rank. The calling fiber is suspended until the others have
// come, in forward and in backward, so `model.backward(loss)` is needed where gradients are: with
// loss.backward() LibTorch's own engine refuses. With T = 1 nothing moves. Do not write to a
// result: it may be the argument itself, or share memory with it.
//
// All throw UsageError if no session runs, a dimension is none of the tensor's or cannot be divided
// by T, or ranks disagree in shape, dtype or call; UnsupportedError if the tensor is sparse,
// nested, quantized, on the meta device or (sums) of a type that cannot be added; PeerLostError if
// the step failed on another rank of the group, or it left. Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// Joins the [.., n, ..] of every rank to [.., T·n, ..], in order of tp_rank along `dim`
/// (all-gather). Backward: the sum of all ranks' gradients, of which each gets its part
/// (reduce-scatter). Each rank sends T-1 times its tensor.
SMP_API at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// Returns the sum over all ranks, on each (all-reduce); each element is added up in order of
/// tp_rank at one place. Backward: the identity, because what follows is the same on all ranks.
SMP_API at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor);

/// Returns a copy of `tensor`, which is the same on all ranks. Backward: the sum of all ranks'
/// gradients (all-reduce).
SMP_API at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor);

/// Returns part tp_rank of `tensor`, which is the same on all ranks, cut into T parts along `dim`.
/// Nothing is sent. Backward: all parts' gradients, on each rank (all-gather).
SMP_API at::Tensor own_part_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// Joins the parts of all ranks in order of tp_rank along `dim`, on each, like
/// fused_allgather_for_tp(), where all ranks go on alike. Backward: this rank's part of the
/// gradient, which is the same on all ranks and counts once; nothing is sent. Each rank sends T-1
/// times its tensor.
SMP_API at::Tensor join_parts_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// Cuts `tensor` into T parts along `split_dim`, sends part i to tp_rank i, and joins the parts
/// that come, one from each rank, along `merge_dim` (all-to-all). Backward: the same with the
/// dimensions exchanged. Each rank sends (T-1)/T of its tensor.
SMP_API at::Tensor scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim,
                                            std::int64_t merge_dim);

/// Returns part tp_rank of the sum over all ranks, cut into T parts along `dim` (reduce-scatter).
/// Backward: all-gather. Each rank sends (T-1)/T of its tensor.
SMP_API at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim);

}  // namespace smp
