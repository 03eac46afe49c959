// tp/layers/distributed_transformer.cpp: blocks are the same in both layouts; what differs is in
// block_products.h and split_norm.h.
#include "smp/tp/distributed_transformer.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/check.h"
#include "smp/tp/distributed_attention_core.h"
#include "tp/group/own_dropout.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/block_products.h"
#include "tp/slices/channel_share.h"
#include "tp/slices/sliced_state.h"
#include "tp/slices/split_norm.h"

namespace smp::nn {
namespace {

using tp::Layout;

tp::SplitNorm norm_of(Layout layout, bool wanted, std::int64_t size, double epsilon) {
  return wanted ? tp::SplitNorm(layout, size, epsilon) : tp::SplitNorm(nullptr);
}

/// The norms before and after a block, at least one of which exists.
struct Norms {
  template <class Options>
  Norms(torch::nn::Module& parent, Layout layout, const Options& options, const char* layer) {
    SMP_REQUIRE(options.pre_layernorm || options.post_layernorm, layer,
                ": neither pre_layernorm nor post_layernorm is set; set one of them, or both");
    before = norm_of(layout, options.pre_layernorm, options.hidden_size, options.layernorm_epsilon);
    after = norm_of(layout, options.post_layernorm, options.hidden_size, options.layernorm_epsilon);
    if (!before.is_empty()) parent.register_module("pre_norm", before);
  }
  /// Registers the norm after the block once the products are registered, so that parameters have
  /// the order of a textbook.
  void register_last(torch::nn::Module& parent) {
    if (!after.is_empty()) parent.register_module("post_norm", after);
  }
  static at::Tensor apply(tp::SplitNorm& norm, const at::Tensor& x) {
    return norm.is_empty() ? x : norm->forward(x);
  }
  tp::SplitNorm before{nullptr}, after{nullptr};
};

template <class Options>
tp::NormalDeviation deviation_of(const Options& options) {
  return options.use_normal_initialization ? tp::NormalDeviation(options.initializer_range)
                                           : std::nullopt;
}

void require_divisible(std::int64_t size, const char* what, const char* layer) {
  const auto ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(size > 0 && size % ranks == 0, layer, ": ", what, ' ', size,
              " cannot be divided by the ", ranks,
              " tensor-parallel ranks; choose a number that can, or another "
              "tensor_parallel_degree");
}

/// Returns the layout of a block of `layer`. @throws UsageError  its hidden size does not suit it.
template <class Options>
Layout layout_for(const Options& options, const char* layer) {
  const auto layout = tp::layout_of(options.optimize, layer);
  if (layout == Layout::kMemory) {
    require_divisible(options.hidden_size, "with optimize \"memory\" hidden_size", layer);
  }
  return layout;
}

void require_hidden(const at::Tensor& hidden, std::int64_t size, const char* what,
                    const char* layer) {
  SMP_REQUIRE(hidden.defined() && hidden.dim() == 3 && hidden.size(2) == size, layer, ": ", what,
              " is ", hidden.defined() ? base::concat(hidden.sizes()) : "undefined",
              ", expected [batch, sequence, ", size, "]; check hidden_size");
}

void require_slices(Layout layout, const char* layer) {
  SMP_REQUIRE(layout == Layout::kMemory, layer,
              ": forward_slices with layout \"speed\", which all layers have on a single "
              "tensor-parallel rank; call forward, or set optimize to \"memory\"");
}

/// Returns the width of a rank's slice of the hidden size.
std::int64_t slice_width(std::int64_t hidden_size) {
  return hidden_size / tp::TensorParallel::current().size();
}

constexpr const char* kAttention = "DistributedAttentionLayer";
constexpr const char* kOutput = "DistributedTransformerOutputLayer";
constexpr const char* kLayer = "DistributedTransformerLayer";
constexpr const char* kTransformer = "DistributedTransformer";

/// What becomes of the inner channels of a block of products.
struct Activation {
  const char* name;
  at::Tensor (*apply)(const at::Tensor& x);
  bool gated;  ///< of a gate, by which other channels are multiplied
};

at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor gelu(const at::Tensor& x) { return at::gelu(x); }
at::Tensor gelu_tanh(const at::Tensor& x) { return at::gelu(x, "tanh"); }

constexpr Activation kActivations[] = {{"gelu", &gelu, false}, {"gelu_tanh", &gelu_tanh, false},
                                       {"relu", &relu, false}, {"swiglu", &silu, true},
                                       {"geglu", &gelu, true}, {"geglu_tanh", &gelu_tanh, true},
                                       {"reglu", &relu, true}};

/// @throws UsageError  there is none of that name.
Activation activation_named(const std::string& name) {
  std::string known;
  for (const auto& activation : kActivations) {
    if (name == activation.name) return activation;
    known += known.empty() ? activation.name : std::string(", ") + activation.name;
  }
  throw UsageError(base::concat(kOutput, ": activation \"", name, "\"; expected one of ", known));
}

/// Applies dropout to the hidden state between blocks, of which a rank has a slice with "memory".
at::Tensor dropout_between(Layout layout, const at::Tensor& x, double probability, bool training) {
  return layout == Layout::kMemory ? tp::own_dropout(x, probability, training)
                                   : at::dropout(x, probability, training);
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

// ---- attention ----

struct DistributedAttentionLayerImpl::Parts {
  Parts(torch::nn::Module& parent, const AttentionLayerOptions& options)
      : layout(layout_for(options, kAttention)),
        heads(heads_for(options)),
        norms(parent, layout, options, kAttention) {}

  const Layout layout;
  const tp::HeadShare heads;
  Norms norms;
  tp::SplitLinear query{nullptr}, key{nullptr}, value{nullptr}, dense{nullptr};
  DistributedAttentionCore core{nullptr};
};

DistributedAttentionLayerImpl::DistributedAttentionLayerImpl(const AttentionLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>(*this, with)) {
  auto& own = *parts_;
  const auto hidden = options.hidden_size, size = options.attention_head_size;
  const auto channels = options.num_attention_heads * size;
  const auto key_channels =
      options.num_key_value_heads.value_or(options.num_attention_heads) * size;
  const auto deviation = deviation_of(options);
  const auto into = [&](const char* name, std::int64_t outputs, const tp::ChannelShare& share) {
    return register_module(name, tp::first_product(own.layout, hidden, outputs, share, deviation));
  };
  own.query = into("query", channels, own.heads.queries());
  own.key = into("key", key_channels, own.heads.keys());
  own.value = into("value", key_channels, own.heads.keys());
  own.dense = register_module(
      "dense", tp::second_product(own.layout, channels, hidden, own.heads.queries(), deviation));
  own.norms.register_last(*this);
  own.core = register_module("core", DistributedAttentionCore(options.attention_dropout_prob));
}

DistributedAttentionLayerImpl::~DistributedAttentionLayerImpl() = default;

void DistributedAttentionLayerImpl::require_sources(const at::Tensor& hidden,
                                                    const at::Tensor& cross_states,
                                                    std::int64_t width) const {
  require_hidden(hidden, width, "hidden", kAttention);
  if (options.cross_attention) {
    require_hidden(cross_states, width, "cross_states", kAttention);
  } else {
    SMP_REQUIRE(!cross_states.defined(), kAttention,
                ": cross_states without cross_attention; set that option, or leave them out");
  }
}

at::Tensor DistributedAttentionLayerImpl::forward(const at::Tensor& hidden, const at::Tensor& mask,
                                                  const at::Tensor& cross_states) {
  require_sources(hidden, cross_states, options.hidden_size);
  if (parts_->layout == Layout::kSpeed) {
    return block(hidden, tp::mask_of_all(mask, hidden.size(0)), cross_states);
  }
  const auto all = tp::sliced({hidden, mask, cross_states, {}});
  return tp::own_samples(block(all.hidden, all.mask, all.cross_states));
}

at::Tensor DistributedAttentionLayerImpl::forward_slices(const at::Tensor& hidden,
                                                         const at::Tensor& mask,
                                                         const at::Tensor& cross_states) {
  require_slices(parts_->layout, kAttention);
  require_sources(hidden, cross_states, slice_width(options.hidden_size));
  return block(hidden, mask, cross_states);
}

at::Tensor DistributedAttentionLayerImpl::block(const at::Tensor& hidden, const at::Tensor& mask,
                                                const at::Tensor& cross_states) {
  auto& own = *parts_;
  const auto mixed = attend(projected(hidden, cross_states), mask);
  const auto output = tp::joined_by(own.layout, own.dense, mixed);
  const auto dropped =
      dropout_between(own.layout, output, options.hidden_dropout_prob, is_training());
  return Norms::apply(own.norms.after, hidden + dropped);
}

/// Returns this rank's channels of queries, keys and values, of all samples: each [T·B, S,
/// channels].
std::vector<at::Tensor> DistributedAttentionLayerImpl::projected(const at::Tensor& hidden,
                                                                 const at::Tensor& cross_states) {
  auto& own = *parts_;
  const auto& keys = own.heads.keys();
  const auto x = tp::read_by_products(own.layout, Norms::apply(own.norms.before, hidden));
  if (!options.cross_attention) {
    return tp::channels_of(own.layout, x,
                           {{own.query, own.heads.queries()}, {own.key, keys}, {own.value, keys}});
  }
  auto channels = tp::channels_of(own.layout, x, {{own.query, own.heads.queries()}});
  const auto source = tp::read_by_products(own.layout, cross_states);
  for (auto& of_source :
       tp::channels_of(own.layout, source, {{own.key, keys}, {own.value, keys}})) {
    channels.push_back(std::move(of_source));
  }
  return channels;
}

/// Reshapes [.., S, heads·D] -> [.., heads, S, D].
at::Tensor DistributedAttentionLayerImpl::heads_of(const at::Tensor& channels) const {
  return channels.unflatten(-1, {-1, options.attention_head_size}).transpose(1, 2);
}

/// Returns keys or values, one for each head of this rank that is no padding.
at::Tensor DistributedAttentionLayerImpl::keys_of(const at::Tensor& channels) const {
  const auto keys = heads_of(channels);
  const auto& share = parts_->heads;
  if (share.one_to_one()) return keys;
  const auto numbers = at::tensor(share.key_of_head(), at::kLong);
  return keys.index_select(1, numbers.to(keys.device()));
}

/// Returns what is added to the scores of queries [.., L, D] and keys [.., S, D] where it is more
/// than being causal: broadcasting to [T·B, heads, L, S]; undefined for nothing.
at::Tensor DistributedAttentionLayerImpl::added_to_scores(const at::Tensor& queries,
                                                          const at::Tensor& keys,
                                                          const at::Tensor& mask) const {
  const auto length = queries.size(2);
  if (options.causal_mask_size) {
    const auto longest = *options.causal_mask_size;
    SMP_REQUIRE(length <= longest, kAttention, ": a sequence of ", length,
                " positions, but causal_mask_size is ", longest, "; raise it");
  }
  if (!mask.defined()) return {};
  SMP_REQUIRE(mask.dim() < 3 || mask.size(-3) == 1, "DistributedAttentionLayer: a mask of shape ",
              mask.sizes(), "; expected [B or 1, 1, 1, S]: it is one for all heads, of which each ",
              "rank has a part (biases that differ from head to head, such as ALiBi's, need an "
              "attention that is not spread)");
  const auto added = at::atleast_2d(mask).to(queries.scalar_type());
  if (!options.causal_mask_size) return added;
  const auto later = at::ones({length, keys.size(2)}, added.options().dtype(at::kBool)).triu(1);
  return added.masked_fill(later, -std::numeric_limits<double>::infinity());
}

/// Returns the output of this rank's heads for all ranks' samples: [T·B, S, ceil(A/T)·D]. Padding
/// heads are not computed; they are zero.
at::Tensor DistributedAttentionLayerImpl::attend(const std::vector<at::Tensor>& channels,
                                                 const at::Tensor& mask) {
  auto& own = *parts_;
  const auto queries = heads_of(channels[0]).narrow(1, 0, own.heads.real_heads());
  const auto keys = keys_of(channels[1]), values = keys_of(channels[2]);
  const auto added = added_to_scores(queries, keys, mask);
  const bool is_causal = options.causal_mask_size.has_value() && !added.defined();
  const auto mixed = own.core(queries, keys, values, added, is_causal).transpose(1, 2).flatten(2);
  const auto padding = channels[0].size(-1) - mixed.size(-1);
  return padding == 0 ? mixed : at::constant_pad_nd(mixed, {0, padding});
}

// ---- two products ----

struct DistributedTransformerOutputLayerImpl::Parts {
  Parts(torch::nn::Module& parent, const TransformerOutputLayerOptions& options)
      : layout(layout_for(options, kOutput)),
        norms(parent, layout, options, kOutput),
        inner(tp::ChannelShare::even(options.intermediate_size, 1,
                                     tp::TensorParallel::current().size())),
        activation(activation_named(options.activation)) {}

  const Layout layout;
  Norms norms;
  const tp::ChannelShare inner;
  const Activation activation;
  tp::SplitLinear gate{nullptr}, first{nullptr}, second{nullptr};
};

DistributedTransformerOutputLayerImpl::DistributedTransformerOutputLayerImpl(
    const TransformerOutputLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>(*this, with)) {
  require_divisible(options.intermediate_size, "intermediate_size", kOutput);
  auto& own = *parts_;
  const auto hidden = options.hidden_size, inner = options.intermediate_size;
  const auto deviation = deviation_of(options);
  const auto into = [&](const char* name) {
    return register_module(name,
                           tp::first_product(own.layout, hidden, inner, own.inner, deviation));
  };
  if (own.activation.gated) own.gate = into("gate");
  own.first = into("first");
  own.second = register_module("second",
                               tp::second_product(own.layout, inner, hidden, own.inner, deviation));
  own.norms.register_last(*this);
}

DistributedTransformerOutputLayerImpl::~DistributedTransformerOutputLayerImpl() = default;

at::Tensor DistributedTransformerOutputLayerImpl::forward(const at::Tensor& hidden) {
  require_hidden(hidden, options.hidden_size, "hidden", kOutput);
  if (parts_->layout == Layout::kSpeed) return block(hidden);
  return tp::own_samples(block(tp::sliced({hidden, {}, {}, {}}).hidden));
}

at::Tensor DistributedTransformerOutputLayerImpl::forward_slices(const at::Tensor& hidden) {
  require_slices(parts_->layout, kOutput);
  require_hidden(hidden, slice_width(options.hidden_size), "hidden", kOutput);
  return block(hidden);
}

at::Tensor DistributedTransformerOutputLayerImpl::block(const at::Tensor& hidden) {
  auto& own = *parts_;
  const auto x = tp::read_by_products(own.layout, Norms::apply(own.norms.before, hidden));
  std::vector<tp::Projection> projections;
  if (own.activation.gated) projections.push_back({own.gate, own.inner});
  projections.push_back({own.first, own.inner});
  const auto inner = tp::channels_of(own.layout, x, projections);
  auto active = own.activation.apply(inner[0]);
  if (own.activation.gated) active = active * inner[1];
  const auto output = tp::joined_by(own.layout, own.second, active);
  const auto dropped =
      dropout_between(own.layout, output, options.hidden_dropout_prob, is_training());
  return Norms::apply(own.norms.after, hidden + dropped);
}

// ---- both ----

DistributedTransformerLayerImpl::DistributedTransformerLayerImpl(
    const AttentionLayerOptions& with, const TransformerOutputLayerOptions& output_options) {
  const auto layout = tp::layout_of(with.optimize, kLayer);
  SMP_REQUIRE(layout == tp::layout_of(output_options.optimize, kLayer), kLayer, ": optimize is \"",
              with.optimize, "\" in attention and \"", output_options.optimize,
              "\" in output; set both to the same");
  slices_ = layout == Layout::kMemory;
  auto self = with;
  self.cross_attention = false;
  attention = register_module("attention", DistributedAttentionLayer(self));
  if (with.cross_attention) {
    auto cross = with;
    cross.causal_mask_size.reset();  // of the other sequence all positions are seen
    cross_attention = register_module("cross_attention", DistributedAttentionLayer(cross));
  }
  output = register_module("output", DistributedTransformerOutputLayer(output_options));
}

TransformerState DistributedTransformerLayerImpl::forward(TransformerState state) {
  if (slices_) {
    if (state.sliced) return run_slices(std::move(state));
    require_hidden(state.hidden, attention->options.hidden_size, "hidden", kLayer);
    state.hidden = tp::own_samples(run_slices(tp::sliced(state)).hidden);
    return state;
  }
  SMP_REQUIRE(
      !state.sliced, kLayer,
      ": a sliced state in a layer of layout \"speed\"; give all layers of a stack the same");
  state.hidden = attention(state.hidden, state.mask, at::Tensor());
  if (!cross_attention.is_empty()) {
    state.hidden = cross_attention(state.hidden, state.cross_mask, state.cross_states);
  }
  state.hidden = output(state.hidden);
  return state;
}

TransformerState DistributedTransformerLayerImpl::run_slices(TransformerState state) {
  state.hidden = attention->forward_slices(state.hidden, state.mask, at::Tensor());
  if (!cross_attention.is_empty()) {
    state.hidden =
        cross_attention->forward_slices(state.hidden, state.cross_mask, state.cross_states);
  }
  state.hidden = output->forward_slices(state.hidden);
  return state;
}

DistributedTransformerImpl::DistributedTransformerImpl(const AttentionLayerOptions& attention,
                                                       const TransformerOutputLayerOptions& output,
                                                       std::int64_t num_layers)
    : slices_(tp::layout_of(attention.optimize, kTransformer) == Layout::kMemory) {
  SMP_REQUIRE(num_layers > 0, kTransformer, ": num_layers is ", num_layers, "; choose at least 1");
  for (std::int64_t i = 0; i < num_layers; ++i) {
    layers.push_back(
        register_module(base::concat("layer", i), DistributedTransformerLayer(attention, output)));
  }
}

TransformerState DistributedTransformerImpl::forward(const TransformerState& state) {
  const bool exchange = slices_ && !state.sliced;
  auto inner = exchange ? tp::sliced(state) : state;
  for (auto& layer : layers) inner = layer(inner);
  if (!exchange) return inner;
  auto result = state;
  result.hidden = tp::own_samples(inner.hidden);
  return result;
}

}  // namespace smp::nn
