// tp/layers/transformer_block.h: what the two kinds of blocks of a transformer's layer share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "smp/tp/distributed_transformer.h"
#include "tp/group/layout.h"
#include "tp/slices/split_linear.h"

namespace smp::tp {

/// @throws UsageError  T does not divide `size`.
void require_divisible(std::int64_t size, const char* what, const char* layer);
/// @throws UsageError  `hidden` is not [B, S, size].
void require_hidden(const at::Tensor& hidden, std::int64_t size, const char* what,
                    const char* layer);
/// @throws UsageError  the layout is not kMemory.
void require_slices(Layout layout, const char* layer);
/// @throws UsageError  the layout is not kSequence.
void require_parts(Layout layout, const char* layer);
/// Returns the width of a rank's slice of the hidden size.
std::int64_t slice_width(std::int64_t hidden_size);

/// Returns the layout of a block of `layer`. @throws UsageError  its hidden size does not suit it.
template <class Options>
Layout layout_for(const Options& options, const char* layer) {
  const auto layout = layout_of(options.optimize, layer);
  if (layout == Layout::kMemory) {
    require_divisible(options.hidden_size, "with optimize \"memory\" hidden_size", layer);
  }
  return layout;
}

template <class Options>
NormalDeviation deviation_of(const Options& options) {
  return options.use_normal_initialization ? NormalDeviation(options.initializer_range)
                                           : std::nullopt;
}

/// Returns the options of layer `index` of a stack: relative positions are read by the first one,
/// for all.
AttentionLayerOptions attention_of_layer(const AttentionLayerOptions& of_stack, std::int64_t index);

/// Returns the rows that products with `layer` read: of its type, if what is between blocks may
/// have more bits.
at::Tensor read_with(const SplitLinear& layer, const at::Tensor& x, bool fp32_between);

/// Applies dropout to the result of a block, of which a rank has a part but with kSpeed.
at::Tensor dropout_between(Layout between, const at::Tensor& x, double probability, bool training);

/// Returns `hidden` + `added`; of 16 bits in float32 if `in_float32`.
at::Tensor residual_sum(const at::Tensor& hidden, const at::Tensor& added, bool in_float32);

}  // namespace smp::tp
