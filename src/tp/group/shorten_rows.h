// tp/group/shorten_rows.h: max_norm of a table of which each rank has a part of every row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Does what LibTorch's embedding_renorm_ does to a whole table: rows that `indices` name and whose
/// norm is above `max_norm` are scaled to it. The norms are those of whole rows: every rank of the
/// TP_GROUP calls it with the same indices, and sends a number for each distinct one. No history
/// is recorded.
///
/// Ranks need not come here in one order of their microbatches: where one has shortened its part
/// of a row for a microbatch before another has, their parts would not be those of one row any
/// more. So a rank contributes the length that its part had before the step shortened it, and
/// shortens it once. It is not this function that knows, but who keeps rows of replicas alike
/// (api/replicas/replica_writes.h); outside of steps all ranks come in one order.
/// @param slice    [N, D/T], changed in place
/// @param indices  [..], int64 or int32 in [0, N)
void shorten_rows(at::Tensor& slice, const at::Tensor& indices, double max_norm, double norm_type);

/// Operators that shorten_rows() does its work with, so that others may see them as they see
/// embedding_renorm_: "smp_tp::row_lengths" gives the share that parts have in the norms of whole
/// rows, [n] in float64.
/// @param rows  [n], int64, each once
at::Tensor row_lengths(const at::Tensor& slice, const at::Tensor& rows, double norm_type);
/// That of parts themselves, [n, D/T].
at::Tensor lengths_of_parts(const at::Tensor& parts, double norm_type);
/// "smp_tp::scale_rows_" multiplies parts of rows. @param scales  [n]
void scale_rows(at::Tensor& slice, const at::Tensor& rows, const at::Tensor& scales,
                double max_norm, double norm_type);

}  // namespace smp::tp
