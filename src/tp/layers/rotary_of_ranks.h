// tp/layers/rotary_of_ranks.h: rotary positions of the samples of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "smp/nn/rotary_embedding.h"

namespace smp::tp {

/// Turns queries [T·B, heads, S, D] and keys of all ranks' samples as each rank's batch by itself
/// would be: dynamic frequencies go by the longest position of a batch.
/// @param positions  integers [T·B or 1, S] or [S]; 0 to S - 1 if undefined
std::tuple<at::Tensor, at::Tensor> turned_for_ranks(nn::RotaryEmbeddingImpl& rotary,
                                                    const at::Tensor& query, const at::Tensor& key,
                                                    const at::Tensor& positions);

}  // namespace smp::tp
