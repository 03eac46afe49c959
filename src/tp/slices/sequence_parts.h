// tp/slices/sequence_parts.h: the rows of a prescaled batch cut along the sequence (Korthikanti et
// al., Reducing Activation Recomputation in Large Transformer Models, 2022, section 4.2.2).
//
// B rows of the batch that all ranks have, S sequence, W width, T tensor-parallel ranks, s =
// ceil(S/T). Positions beyond S hold what nothing reads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace smp::tp {

/// Returns this rank's positions of what all ranks have: [B, S, W] -> [B, s, W]. Nothing is sent;
/// backward, an all-gather. Of a whole_sequence() that nothing has looked at it is the part of
/// which that was made, and nothing is sent in backward either.
at::Tensor part_of_sequence(const at::Tensor& whole);
/// Returns all positions, as every rank goes on with them: [B, s, W] -> [B, length, W]. An
/// all-gather, where something asks for the values; backward, nothing.
at::Tensor whole_sequence(const at::Tensor& part, std::int64_t length);

/// Returns all positions, for ranks that each compute something else of them: [B, s, W] -> [B,
/// length, W]. An all-gather; backward, a reduce-scatter.
at::Tensor read_sequence(const at::Tensor& part, std::int64_t length);
/// Returns joined_product() of all positions: [B, s, I] -> [B, length, sum of n]. An all-gather.
/// For backward a rank keeps its own positions: those of the others are gathered again, and a
/// reduce-scatter gives each rank the gradient of its own. Under autocast all positions are kept,
/// in 16 bits.
/// @param weights  at least one, [n, I] each, of this rank's channels
/// @param bias     [sum of n]; undefined: none
at::Tensor sequence_product(const at::Tensor& part, std::int64_t length,
                            const std::vector<at::Tensor>& weights, const at::Tensor& bias);
/// Adds up what every rank has computed of all positions: [B, S, W] -> [B, s, W] of this rank's. A
/// reduce-scatter; backward, an all-gather.
at::Tensor summed_sequence(const at::Tensor& addends);

}  // namespace smp::tp
