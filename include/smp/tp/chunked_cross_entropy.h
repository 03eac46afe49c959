// smp/tp/chunked_cross_entropy.h: cross entropy of a vocabulary that is split over the ranks of a
// TP_GROUP, without the scores of all rows ever being in memory.
//
// N rows of the samples of all ranks, B of one rank's batch, H width, V classes, T tensor-parallel
// ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "smp/detail/export.h"

namespace smp {

/// How chunked_cross_entropy_for_tp() computes.
struct ChunkedCrossEntropyOptions {
  std::int64_t ignore_index = -100;              ///< label of rows that cost nothing
  std::optional<std::int64_t> num_classes = {};  ///< V; nothing: no row of the table pads
  /// Elements of scores that are made at once, on this rank; at least one row of them is.
  std::int64_t most_scores = std::int64_t{1} << 24;
};

/// Returns split_cross_entropy_for_tp(at::linear(hidden, table), labels) without those scores: they
/// are made for some rows at a time, in forward and again in backward, which is one product more.
/// What is kept for backward is `hidden`, `table` and one number a row. Sends what
/// split_cross_entropy_for_tp() sends. Sums over classes, and over the rows of a gradient of 16
/// bits, are taken in float32; under autocast the products are of its type.
///
/// @param hidden  [N, .., H] of the samples of all ranks
/// @param table   this rank's classes, [c, H]; rows beyond V pad, and get no gradient
/// @param labels  of all those rows, the same on all ranks: [N, ..] int64 or uint8 in [0, V)
/// @param options  which labels count, how many classes there are, how much is made at once
/// @return [B, ..], of the type of the products
/// @throws UsageError  shapes do not belong together, a label is none of the V classes,
///                     `most_scores` is not positive; and as the primitives (smp/tp/primitives.h).
SMP_API at::Tensor chunked_cross_entropy_for_tp(const at::Tensor& hidden, const at::Tensor& table,
                                                const at::Tensor& labels,
                                                const ChunkedCrossEntropyOptions& options = {});

}  // namespace smp
