// tp/layers/distributed_transformer.cpp: layers and stacks of the two blocks.
#include "smp/tp/distributed_transformer.h"

#include "base/check.h"
#include "tp/group/layout.h"
#include "tp/layers/transformer_block.h"
#include "tp/slices/sequence_parts.h"
#include "tp/slices/sliced_state.h"

namespace smp::nn {
namespace {

using tp::Layout;

constexpr const char* kLayer = "DistributedTransformerLayer";
constexpr const char* kTransformer = "DistributedTransformer";

}  // namespace

DistributedTransformerLayerImpl::DistributedTransformerLayerImpl(
    const AttentionLayerOptions& with, const TransformerOutputLayerOptions& output_options) {
  const auto layout = tp::layout_of(with.optimize, kLayer);
  SMP_REQUIRE(layout == tp::layout_of(output_options.optimize, kLayer), kLayer, ": optimize is \"",
              with.optimize, "\" in attention and \"", output_options.optimize,
              "\" in output; set both to the same");
  slices_ = layout == Layout::kMemory;
  parts_ = layout == Layout::kSequence;
  auto self = with;
  self.cross_attention = false;
  attention = register_module("attention", DistributedAttentionLayer(self));
  if (with.cross_attention) {
    auto cross = with;
    // Of the other sequence all positions are seen, alike.
    cross.causal_mask_size.reset();
    cross.rotary.reset();
    cross.relative_positions.reset();
    cross.alibi_bias_max.reset();
    cross_attention = register_module("cross_attention", DistributedAttentionLayer(cross));
  }
  output = register_module("output", DistributedTransformerOutputLayer(output_options));
}

TransformerState DistributedTransformerLayerImpl::forward(TransformerState state) {
  SMP_REQUIRE(
      slices_ || !state.sliced, kLayer,
      ": a sliced state in a layer of layout \"speed\"; give all layers of a stack the same");
  const auto width = attention->options.hidden_size;
  tp::require_hidden(state.hidden, state.sliced ? tp::slice_width(width) : width, "hidden", kLayer);
  // This layer and those after it add what its table says, if it has one.
  if (attention->options.relative_positions) {
    state.position_bias = attention->position_bias(state.hidden.size(1));
  }
  if (slices_) {
    const bool enters = !state.sliced;
    state.hidden = enters ? tp::own_samples(run_slices(tp::sliced(state))) : run_slices(state);
    return state;
  }
  if (parts_) {
    const auto length = state.hidden.size(1);
    state.hidden = tp::whole_sequence(run_parts(state), length);
    return state;
  }
  state.hidden =
      attention(state.hidden, state.mask, at::Tensor(), state.positions, state.position_bias);
  if (!cross_attention.is_empty()) {
    state.hidden = cross_attention(state.hidden, state.cross_mask, state.cross_states);
  }
  state.hidden = output(state.hidden);
  return state;
}

at::Tensor DistributedTransformerLayerImpl::run_slices(const TransformerState& state) {
  auto hidden = attention->forward_slices(state.hidden, state.mask, at::Tensor(), state.positions,
                                          state.position_bias);
  if (!cross_attention.is_empty()) {
    hidden = cross_attention->forward_slices(hidden, state.cross_mask, state.cross_states);
  }
  return output->forward_slices(hidden);
}

/// Returns this rank's part of the sequence.
at::Tensor DistributedTransformerLayerImpl::run_parts(const TransformerState& state) {
  const auto length = state.hidden.size(1);
  auto part = attention->forward_part(tp::part_of_sequence(state.hidden), length, state.mask,
                                      at::Tensor(), state.positions, state.position_bias);
  if (!cross_attention.is_empty()) {
    part = cross_attention->forward_part(part, length, state.cross_mask, state.cross_states,
                                         at::Tensor(), at::Tensor());
  }
  return output->forward_part(part, length);
}

DistributedTransformerImpl::DistributedTransformerImpl(const AttentionLayerOptions& attention,
                                                       const TransformerOutputLayerOptions& output,
                                                       std::int64_t num_layers)
    : slices_(tp::layout_of(attention.optimize, kTransformer) == Layout::kMemory) {
  SMP_REQUIRE(num_layers > 0, kTransformer, ": num_layers is ", num_layers, "; choose at least 1");
  for (std::int64_t i = 0; i < num_layers; ++i) {
    layers.push_back(
        register_module(base::concat("layer", i),
                        DistributedTransformerLayer(tp::attention_of_layer(attention, i), output)));
  }
}

TransformerState DistributedTransformerImpl::forward(const TransformerState& state) {
  const bool exchange = slices_ && !state.sliced;
  auto inner = exchange ? tp::sliced(state) : state;
  for (auto& layer : layers) inner = layer(inner);
  auto result = state;  // what the first layer's table says is no affair of other stacks
  result.hidden = exchange ? tp::own_samples(inner.hidden) : inner.hidden;
  return result;
}

}  // namespace smp::nn
