// tp/slices/sequence_parts.h: the rows of a prescaled batch cut along the sequence (Korthikanti et
// al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.2.2).
//
// B rows of the batch that all ranks have, S sequence, W width, T tensor-parallel ranks, s =
// ceil(S/T). Positions beyond S hold what nothing reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace smp::tp {

/// Returns this rank's positions of what all ranks have: [B, S, W] -> [B, s, W]. Nothing is sent;
/// backward, an all-gather.
at::Tensor part_of_sequence(const at::Tensor& whole);
/// Returns all positions, as every rank goes on with them: [B, s, W] -> [B, length, W]. An
/// all-gather; backward, nothing.
at::Tensor whole_sequence(const at::Tensor& part, std::int64_t length);

/// Returns all positions, for ranks that each compute something else of them: [B, s, W] -> [B,
/// length, W]. An all-gather; backward, a reduce-scatter.
at::Tensor read_sequence(const at::Tensor& part, std::int64_t length);
/// Adds up what every rank has computed of all positions: [B, S, W] -> [B, s, W] of this rank's. A
/// reduce-scatter; backward, an all-gather.
at::Tensor summed_sequence(const at::Tensor& addends);

}  // namespace smp::tp
