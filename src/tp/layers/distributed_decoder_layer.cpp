// tp/layers/distributed_decoder_layer.cpp: see the header.
#include "smp/tp/distributed_decoder_layer.h"

#include <ATen/ATen.h>

#include "smp/tp/batch_primitives.h"
#include "smp/tp/distributed_gated_mlp.h"
#include "smp/tp/distributed_grouped_query_attention.h"
#include "tp/slices/block_layout.h"
#include "tp/slices/sequence_parts.h"
#include "tp/slices/split_rms_norm.h"

namespace smp::nn {
namespace {

constexpr const char* kDecoderLayer = "DistributedDecoderLayer";

}  // namespace

struct DistributedDecoderLayerImpl::Parts {
  tp::Layout layout;
  tp::SplitRmsNorm before_attention{nullptr}, before_mlp{nullptr};
  // Not routed: they are where the layer is.
  std::shared_ptr<DistributedGroupedQueryAttentionImpl> attention = {};
  std::shared_ptr<DistributedGatedMlpImpl> mlp = {};
};

DistributedDecoderLayerImpl::DistributedDecoderLayerImpl(const DecoderLayerImpl& whole,
                                                         const std::string& optimize, tp::Keep keep)
    : options(whole.options),
      parts_(std::make_shared<Parts>(
          Parts{tp::layout_of_block(optimize, options.norm().width(), kDecoderLayer)})) {
  auto& own = *parts_;
  const auto norm = [&](const char* name, const RMSNorm& of_layer) {
    return register_module(name, tp::SplitRmsNorm(*of_layer, own.layout, keep));
  };
  own.before_attention = norm("input_layernorm", whole.input_layernorm);
  own.before_mlp = norm("post_attention_layernorm", whole.post_attention_layernorm);
  using Attention = DistributedGroupedQueryAttentionImpl;
  own.attention = register_module(
      "self_attn", std::shared_ptr<Attention>(new Attention(*whole.self_attn, optimize, keep)));
  own.mlp = register_module("mlp", std::shared_ptr<DistributedGatedMlpImpl>(
                                       new DistributedGatedMlpImpl(*whole.mlp, optimize, keep)));
}

DistributedDecoderLayerImpl::DistributedDecoderLayerImpl(const DecoderLayerOptions& with,
                                                         const std::string& optimize)
    : DistributedDecoderLayerImpl(DecoderLayerImpl(with), optimize, tp::Keep::kCopies) {}

DistributedDecoderLayerImpl::DistributedDecoderLayerImpl(DecoderLayerImpl& original)
    : DistributedDecoderLayerImpl(original, {}, tp::Keep::kAdopted) {}

DistributedDecoderLayerImpl::~DistributedDecoderLayerImpl() = default;

std::string DistributedDecoderLayerImpl::obstacle(const DecoderLayerImpl& original, int ranks) {
  return tp::obstacle_of_block(original.options.norm().width(), ranks);
}

at::Tensor DistributedDecoderLayerImpl::forward(const at::Tensor& hidden,
                                                const at::Tensor& positions,
                                                const at::Tensor& tokens) {
  auto& own = *parts_;
  tp::require_rows(own.layout, hidden, options.norm().width(), /*sliced=*/false, 3, kDecoderLayer);
  if (own.layout == tp::Layout::kSpeed) {
    const auto x =
        hidden + own.attention->forward(own.before_attention->forward(hidden), positions, tokens);
    return x + own.mlp->forward(own.before_mlp->forward(x));
  }
  if (own.layout == tp::Layout::kSequence) {
    const auto length = hidden.size(1);
    auto x = tp::part_of_sequence(hidden);
    x = x + own.attention->of_parts(own.before_attention->forward(x), length, positions, tokens);
    x = x + own.mlp->of_parts(own.before_mlp->forward(x), length);
    return tp::whole_sequence(x, length);
  }
  const auto places = tp::rows_of_all(positions, hidden.size(0));
  const auto present = tp::rows_of_all(tokens, hidden.size(0));
  auto x = slices_of_batch_for_tp(hidden, -1);
  x = x + own.attention->forward_slices(own.before_attention->forward(x), places, present);
  x = x + own.mlp->forward_slices(own.before_mlp->forward(x));
  return batch_of_slices_for_tp(x, -1);
}

}  // namespace smp::nn
