// tp/slices/sliced_state.h: what goes through transformer layers of layout "memory" (paper App.
// F.2).
//
// B rows of one rank's batch, S sequence, H hidden size, T tensor-parallel ranks.
#pragma once

#include "smp/tp/distributed_transformer.h"

namespace smp::tp {

/// Returns a slice of the hidden size of all ranks' samples: hidden and cross states [T·B, S, H/T],
/// and masks and positions of all samples. It takes an all-to-all of each, forward and backward; of
/// a prescaled batch, nothing in forward and an all-gather in backward.
TransformerState sliced(const TransformerState& own);
/// Returns the hidden state of one's own samples: [T·B, S, H/T] -> [B, S, H]. It takes an
/// all-to-all; of a prescaled batch, whose samples are returned all, an all-gather.
at::Tensor own_samples(const at::Tensor& slices);
/// Returns the mask of the samples of all ranks, of [B, ..], or of [1, ..] for all samples of a
/// rank; `mask` itself if it has fewer than four dimensions, and so none of samples.
/// @param batch  the number of samples of this rank
at::Tensor mask_of_all(const at::Tensor& mask, std::int64_t batch);

}  // namespace smp::tp
