// smp/tp/split_cross_entropy.h: cross entropy of logits that are split along the classes over the
// ranks of a TP_GROUP (Shoeybi et al., Megatron-LM, 2019, section 3; here ranks have samples of
// their own).
//
// B rows of one rank's batch, V classes, T tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "smp/detail/export.h"

namespace smp {

/// Returns -log softmax(logits)[label] of this rank's own rows, as torch::cross_entropy with
/// reduction "none" gives, without any rank ever having whole logits:
///
///     logits [T·B, .., V/T] ─ log-sum-exp, score of the label ─► [T·B, .., 2] ─ all-to-all ─►
///     [B, .., 2·T] ─ log-sum-exp of T, minus the one score ─► [B, ..]
///
/// Forward sends 2·(T-1)·B elements from each rank, backward as many. With a prescaled batch T·B
/// stands for the rows of that batch, all of which come back on every rank; two numbers of each are
/// gathered in forward, and nothing is sent in backward. Of float16 and bfloat16 logits sums are
/// taken and sent in float32, as torch takes them, and losses rounded at the end. Logits may be
/// -inf.
///
/// @param logits        this rank's classes, tp_rank·c to (tp_rank + 1)·c - 1, of the rows of all
///                      ranks in order of tp_rank: [T·B, .., c]; or of the one row that all ranks
///                      have: [c]
/// @param labels        of all those rows, the same on all ranks: [T·B, ..] int64 or uint8 in
///                      [0, V); of one row: []
/// @param ignore_index  label of rows that cost nothing
/// @param num_classes   V, at most T·c: logits of classes beyond it are padding, which counts
///                      nothing and gets no gradient; nothing: T·c
/// @return [B, ..], of the type of `logits`; of one row: []
/// @throws UsageError   shapes do not belong together, or a label is none of the V classes; and as
///                      the primitives (smp/tp/primitives.h).
SMP_API at::Tensor split_cross_entropy_for_tp(const at::Tensor& logits, const at::Tensor& labels,
                                              std::int64_t ignore_index = -100,
                                              std::optional<std::int64_t> num_classes = {});

}  // namespace smp
