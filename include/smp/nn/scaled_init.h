// smp/nn/scaled_init.h: initial values of the projections that end a residual branch.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "smp/detail/export.h"

namespace smp::nn {

/// By what the standard deviation of such a projection is divided, so that the sum of all branches
/// does not grow with the depth.
enum class OutputScale : std::uint8_t {
  kNone,        ///< 1
  kTwoLayers,   ///< sqrt(2 · layers), alike in all layers (GPT-2, Megatron)
  kLayerIndex,  ///< sqrt(l) in layer l, counted from 1 (HLAT, arXiv 2404.10630, "Initialization")
};

/// Returns the standard deviation for the projections of one layer that end a residual branch
/// (o_proj and down_proj of a DecoderLayer).
/// @param deviation  of the other weights
/// @param scale      by what it is divided
/// @param layer      0 to layers-1
/// @param layers     of the whole model
/// @throws UsageError  `layer` is not among them.
SMP_API double output_deviation(double deviation, OutputScale scale, std::int64_t layer,
                                std::int64_t layers);

}  // namespace smp::nn
