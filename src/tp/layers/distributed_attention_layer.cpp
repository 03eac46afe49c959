// tp/layers/distributed_attention_layer.cpp: the block is the same in both layouts; what differs is
// in block_products.h and block_norms.h.
#include <ATen/ATen.h>

#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "smp/tp/distributed_attention_core.h"
#include "smp/tp/distributed_transformer.h"
#include "tp/group/tensor_parallel.h"
#include "tp/layers/block_norms.h"
#include "tp/layers/position_biases.h"
#include "tp/layers/rotary_of_ranks.h"
#include "tp/layers/transformer_block.h"
#include "tp/slices/block_layout.h"
#include "tp/slices/block_products.h"
#include "tp/slices/channel_share.h"
#include "tp/slices/sliced_state.h"

namespace smp::nn {
namespace {

constexpr const char* kAttention = "DistributedAttentionLayer";

void require_positions(const AttentionLayerOptions& options) {
  const int kinds = int(options.rotary.has_value()) + int(options.relative_positions.has_value()) +
                    int(options.alibi_bias_max.has_value());
  SMP_REQUIRE(kinds <= 1, kAttention,
              ": several of rotary, relative_positions and alibi_bias_max are set; keep one");
  SMP_REQUIRE(
      kinds == 0 || !options.cross_attention, kAttention,
      ": rotary, relative_positions or alibi_bias_max with cross_attention, whose keys have "
      "positions of another sequence; leave them out");
  SMP_REQUIRE(!options.rotary || options.rotary->head_dim() == options.attention_head_size,
              kAttention, ": rotary turns ", options.rotary ? options.rotary->head_dim() : 0,
              " elements of heads of attention_head_size ", options.attention_head_size,
              "; set both to the same");
  SMP_REQUIRE(!options.alibi_bias_max || *options.alibi_bias_max > 0, kAttention,
              ": alibi_bias_max is ", options.alibi_bias_max.value_or(0), "; must be positive");
}

tp::HeadShare heads_for(const AttentionLayerOptions& options) {
  const auto heads = options.num_attention_heads;
  const auto keys = options.num_key_value_heads.value_or(heads);
  SMP_REQUIRE(heads > 0 && keys > 0 && heads % keys == 0, kAttention, ": num_attention_heads ",
              heads, " is no multiple of num_key_value_heads ", keys,
              "; choose numbers of which one divides the other");
  const auto& own = tp::TensorParallel::current();
  return {heads, keys, options.attention_head_size, own.size(), own.rank()};
}

}  // namespace

struct DistributedAttentionLayerImpl::Parts {
  explicit Parts(const AttentionLayerOptions& options)
      : layout(tp::layout_for(options, kAttention)),
        heads(heads_for(options)),
        norms(tp::BlockNorms::of(options, layout, kAttention)) {}

  const tp::Layout layout;
  const tp::HeadShare heads;
  tp::BlockNorms norms;
  tp::SplitLinear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr};
  std::shared_ptr<RotaryEmbeddingImpl> rotary = {};  // with that option
  tp::RelativePositions relative{nullptr};           // likewise
  DistributedAttentionCore core{nullptr};
};

DistributedAttentionLayerImpl::DistributedAttentionLayerImpl(const AttentionLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>(with)) {
  require_positions(options);
  auto& own = *parts_;
  own.norms.before.register_at(*this, "pre_norm");
  const auto hidden = options.hidden_size, size = options.attention_head_size;
  const auto channels = options.num_attention_heads * size;
  const auto key_channels =
      options.num_key_value_heads.value_or(options.num_attention_heads) * size;
  const auto deviation = tp::deviation_of(options);
  const auto into = [&](const char* name, std::int64_t outputs, const tp::ChannelShare& share) {
    return register_module(
        name, tp::first_product(own.layout, hidden, outputs, share, deviation, options.bias));
  };
  own.query = into("query", channels, own.heads.queries());
  own.key = into("key", key_channels, own.heads.keys());
  own.value = into("value", key_channels, own.heads.keys());
  own.dense =
      register_module("dense", tp::second_product(own.layout, channels, hidden, own.heads.queries(),
                                                  deviation, options.output_bias));
  if (options.rotary) own.rotary = std::make_shared<RotaryEmbeddingImpl>(*options.rotary);
  if (options.relative_positions) {
    own.relative = register_module(
        "relative_attention_bias",
        tp::RelativePositions(*options.relative_positions, options.num_attention_heads,
                              options.causal_mask_size.has_value(), deviation));
  }
  own.norms.after.register_at(*this, "post_norm");
  own.core = register_module("core", DistributedAttentionCore(options.attention_dropout_prob));
}

DistributedAttentionLayerImpl::~DistributedAttentionLayerImpl() = default;

/// What a rank has between blocks, and what it knows of the samples of all.
struct DistributedAttentionLayerImpl::Call {
  tp::Layout between;
  const at::Tensor& hidden;
  const at::Tensor& mask;
  const at::Tensor& cross_states;
  const at::Tensor& positions;
  const at::Tensor& biases;
  std::int64_t length = 0;  // of the sequence, with kSequence
};

void DistributedAttentionLayerImpl::require_sources(const Call& call, std::int64_t width) const {
  tp::require_hidden(call.hidden, width, "hidden", kAttention);
  if (options.cross_attention) {
    tp::require_hidden(call.cross_states, width, "cross_states", kAttention);
  } else {
    SMP_REQUIRE(!call.cross_states.defined(), kAttention,
                ": cross_states without cross_attention; set that option, or leave them out");
  }
  SMP_REQUIRE(!call.positions.defined() || options.rotary, kAttention,
              ": positions without rotary; set that option, or leave them out");
}

at::Tensor DistributedAttentionLayerImpl::forward(const at::Tensor& hidden, const at::Tensor& mask,
                                                  const at::Tensor& cross_states,
                                                  const at::Tensor& positions,
                                                  const at::Tensor& biases) {
  constexpr auto kSpeed = tp::Layout::kSpeed;
  require_sources({kSpeed, hidden, mask, cross_states, positions, biases}, options.hidden_size);
  const auto batch = hidden.size(0);
  const auto masks = tp::mask_of_all(mask, batch);
  const auto places = tp::rows_of_all(positions, batch);
  const auto layout = parts_->layout;
  if (layout != tp::Layout::kMemory) {
    return block({kSpeed, hidden, masks, cross_states, places, biases});
  }
  const auto slices = tp::sliced({.hidden = hidden, .cross_states = cross_states});
  return tp::own_samples(
      block({layout, slices.hidden, masks, slices.cross_states, places, biases}));
}

at::Tensor DistributedAttentionLayerImpl::forward_slices(const at::Tensor& hidden,
                                                         const at::Tensor& mask,
                                                         const at::Tensor& cross_states,
                                                         const at::Tensor& positions,
                                                         const at::Tensor& biases) {
  tp::require_slices(parts_->layout, kAttention);
  const Call call{parts_->layout, hidden, mask, cross_states, positions, biases};
  require_sources(call, tp::slice_width(options.hidden_size));
  return block(call);
}

at::Tensor DistributedAttentionLayerImpl::forward_part(const at::Tensor& part, std::int64_t length,
                                                       const at::Tensor& mask,
                                                       const at::Tensor& cross_states,
                                                       const at::Tensor& positions,
                                                       const at::Tensor& biases) {
  tp::require_parts(parts_->layout, kAttention);
  const Call call{parts_->layout, part, mask, cross_states, positions, biases, length};
  require_sources(call, options.hidden_size);
  return block(call);
}

at::Tensor DistributedAttentionLayerImpl::position_bias(std::int64_t length) {
  SMP_REQUIRE(!parts_->relative.is_empty(), kAttention,
              ": position_bias without relative_positions; set that option");
  return parts_->relative->forward(length, parts_->heads.real_heads());
}

at::Tensor DistributedAttentionLayerImpl::block(const Call& call) {
  auto& own = *parts_;
  const auto mixed = attend(projected(call), call);
  const auto output = tp::joined_by(call.between, own.dense, mixed);
  const auto dropped =
      tp::dropout_between(call.between, output, options.hidden_dropout_prob, is_training());
  return own.norms.after(tp::residual_sum(call.hidden, dropped, options.fp32_residual_addition),
                         call.between);
}

/// Returns this rank's channels of queries, keys and values, of all samples: each [T·B, S,
/// channels].
std::vector<at::Tensor> DistributedAttentionLayerImpl::projected(const Call& call) {
  auto& own = *parts_;
  const auto& keys = own.heads.keys();
  const auto read = [&](const at::Tensor& rows) {
    return tp::read_with(own.query, rows, options.fp32_residual_addition);
  };
  const auto x = read(own.norms.before(call.hidden, call.between));
  const tp::Projection queries{own.query, own.heads.queries()};
  if (!options.cross_attention) {
    return tp::channels_between(call.between, x, {queries, {own.key, keys}, {own.value, keys}},
                                call.length);
  }
  auto channels = tp::channels_between(call.between, x, {queries}, call.length);
  // Of the other sequence no rank has a part.
  const auto between = call.between == tp::Layout::kMemory ? call.between : tp::Layout::kSpeed;
  for (auto& of_source : tp::channels_between(between, read(call.cross_states),
                                              {{own.key, keys}, {own.value, keys}})) {
    channels.push_back(std::move(of_source));
  }
  return channels;
}

/// Reshapes [.., S, heads·D] -> [.., heads, S, D].
at::Tensor DistributedAttentionLayerImpl::heads_of(const at::Tensor& channels) const {
  return channels.unflatten(-1, {-1, options.attention_head_size}).transpose(1, 2);
}

/// Returns `keys` or values [.., heads, S, D], one for each head of this rank that is no padding.
at::Tensor DistributedAttentionLayerImpl::for_own_heads(const at::Tensor& keys) const {
  const auto& share = parts_->heads;
  if (share.one_to_one()) return keys;
  const auto numbers = at::tensor(share.key_of_head(), at::kLong);
  return keys.index_select(1, numbers.to(keys.device()));
}

/// Returns what positions add to the scores of this rank's heads: [1, heads, S, S]; undefined:
/// nothing.
at::Tensor DistributedAttentionLayerImpl::biases_of(const at::Tensor& queries,
                                                    const at::Tensor& given) {
  const auto length = queries.size(2);
  if (given.defined()) return given;
  if (options.relative_positions) return position_bias(length);
  if (!options.alibi_bias_max) return {};
  const auto& own = parts_->heads;
  const auto rank = static_cast<std::size_t>(tp::TensorParallel::current().rank());
  return tp::alibi_biases(own.queries().first[rank] / options.attention_head_size, own.real_heads(),
                          options.num_attention_heads, *options.alibi_bias_max, length, queries);
}

/// Returns what is added to the scores of queries [.., L, D] and keys [.., S, D] where it is more
/// than being causal: broadcasting to [T·B, heads, L, S]; undefined for nothing.
at::Tensor DistributedAttentionLayerImpl::added_to_scores(const at::Tensor& queries,
                                                          const at::Tensor& keys,
                                                          const Call& call) {
  const auto length = queries.size(2);
  if (options.causal_mask_size) {
    const auto longest = *options.causal_mask_size;
    SMP_REQUIRE(length <= longest, kAttention, ": a sequence of ", length,
                " positions, but causal_mask_size is ", longest, "; raise it");
  }
  const auto& mask = call.mask;
  SMP_REQUIRE(!mask.defined() || mask.dim() < 3 || mask.size(-3) == 1, kAttention,
              ": a mask of shape ", mask.sizes(),
              "; expected [B or 1, 1, 1, S]: it is one for all ",
              "heads, of which each rank has a part (for ALiBi set alibi_bias_max; other biases "
              "that differ from head to head need an attention that is not spread)");
  const auto biases = biases_of(queries, call.biases);
  if (!mask.defined() && !biases.defined()) return {};
  at::Tensor added;
  for (const auto& part : {mask.defined() ? at::atleast_2d(mask) : mask, biases}) {
    if (!part.defined()) continue;
    const auto own = part.to(queries.scalar_type());
    added = added.defined() ? added + own : own;
  }
  if (!options.causal_mask_size) return added;
  const auto later = at::ones({length, keys.size(2)}, added.options().dtype(at::kBool)).triu(1);
  return added.masked_fill(later, -std::numeric_limits<double>::infinity());
}

/// Returns the output of this rank's heads for all ranks' samples: [T·B, S, ceil(A/T)·D]. Padding
/// heads are not computed; they are zero.
at::Tensor DistributedAttentionLayerImpl::attend(const std::vector<at::Tensor>& channels,
                                                 const Call& call) {
  auto& own = *parts_;
  auto queries = heads_of(channels[0]).narrow(1, 0, own.heads.real_heads());
  auto keys = heads_of(channels[1]);
  if (own.rotary) {
    std::tie(queries, keys) = tp::turned_for_ranks(*own.rotary, queries, keys, call.positions);
  }
  keys = for_own_heads(keys);
  const auto values = for_own_heads(heads_of(channels[2]));
  const auto added = added_to_scores(queries, keys, call);
  const bool is_causal = options.causal_mask_size.has_value() && !added.defined();
  const auto mixed = own.core(queries, keys, values, added, is_causal, options.attention_scale)
                         .transpose(1, 2)
                         .flatten(2);
  const auto padding = channels[0].size(-1) - mixed.size(-1);
  return padding == 0 ? mixed : at::constant_pad_nd(mixed, {0, padding});
}

}  // namespace smp::nn
