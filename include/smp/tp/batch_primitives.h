// smp/tp/batch_primitives.h: between the batches of the ranks of a TP_GROUP and what distributed
// modules compute with, whether each rank has samples of its own or all have the same
// (`prescaled_batch`): modules made of these are right in both (docs/tensor_parallelism.md).
//
// B rows of a rank's batch, T = smp::tp_size(), N rows of all different samples of the group: T·B,
// or B if the batch is prescaled. C channels, in dimension `dim`, which is not 0.
//
// What goes in and comes out, [B, ..], is as in a module that is not distributed: with a prescaled
// batch it is the same on all ranks, and so is its gradient, which is that of the whole loss.
//
//                               own samples                        prescaled batch
//     slices_of_batch_for_tp    all-to-all           all-to-all    own part      all-gather
//     batch_of_slices_for_tp    all-to-all           all-to-all    all-gather    own part
//     whole_batch_for_tp        all-gather       reduce-scatter    copy          all-reduce
//     batch_of_sums_for_tp      reduce-scatter       all-gather    all-reduce    copy
//                               forward                backward    forward       backward
//
// Results are not to be written to. Errors and threads as in smp/tp/primitives.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "smp/detail/export.h"

namespace smp {

/// Returns this rank's channels of all samples: [B, .., C] -> [N, .., C/T].
SMP_API at::Tensor slices_of_batch_for_tp(const at::Tensor& batch, std::int64_t dim);

/// Returns all channels of this rank's batch, as every rank goes on with them: [N, .., C/T] -> [B,
/// .., C].
SMP_API at::Tensor batch_of_slices_for_tp(const at::Tensor& slices, std::int64_t dim);

/// Returns all samples, for ranks that each compute something else of them: [B, ..] -> [N, ..].
SMP_API at::Tensor whole_batch_for_tp(const at::Tensor& batch);

/// Adds up what every rank has computed of all samples, and returns the sums of this rank's batch:
/// [N, ..] -> [B, ..].
SMP_API at::Tensor batch_of_sums_for_tp(const at::Tensor& addends);

/// Returns `parameter`, which is whole on every rank and of which each uses a part for all samples,
/// with a gradient that becomes right when it is added up over the ranks like that of any whole
/// parameter. Each rank's gradient is a part of a sum: of the loss of all samples, which T losses
/// of own samples make up, so that the sum is right as it is; or of the one loss of a prescaled
/// batch, whose sum over the ranks is divided by T, so that it is multiplied by T. Nothing is sent.
SMP_API at::Tensor used_in_part_for_tp(const at::Tensor& parameter);

}  // namespace smp
