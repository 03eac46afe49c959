// nn/root_mean_square.h: the norm of RMSNorm as functions, for rows that are whole and for slices
// of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include "smp/nn/rms_norm.h"

namespace smp::nn {

/// Returns `input` / sqrt(mean_square + eps) · weight with the casts of RMSNorm.
/// @param input        [.., n]
/// @param wide         the same in the type of sums (in_accumulate_type())
/// @param mean_square  [.., 1] of whole rows, in that type
/// @param weight       [n]
at::Tensor divided_by_root(const at::Tensor& input, const at::Tensor& wide,
                           const at::Tensor& mean_square, const at::Tensor& weight,
                           const RMSNormOptions& options);

/// Returns what RMSNorm gives for whole rows [.., W] with this weight [W].
at::Tensor root_mean_square_norm(const at::Tensor& input, const at::Tensor& weight,
                                 const RMSNormOptions& options);

}  // namespace smp::nn
