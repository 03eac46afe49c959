// tp/slices/sliced_state.h: what goes through transformer layers of layout "memory" (paper App.
// F.2).
//
// B rows of one rank's batch, S sequence, H hidden size, T tensor-parallel ranks.
#pragma once

#include "smp/tp/distributed_transformer.h"

namespace smp::tp {

/// A slice of the hidden size of all ranks' samples: hidden and cross states [T·B, S, H/T], masks
/// of all samples. An all-to-all of each, forward and backward; of a prescaled batch, nothing in
/// forward and an all-gather in backward.
TransformerState sliced(const TransformerState& own);
/// [T·B, S, H/T] -> [B, S, H] of one's own samples. An all-to-all. Of a prescaled batch all
/// samples, an all-gather.
at::Tensor own_samples(const at::Tensor& slices);
/// `mask` of the samples of all ranks, if it differs between samples (of which `batch` are here).
at::Tensor mask_of_all(const at::Tensor& mask, std::int64_t batch);

}  // namespace smp::tp
