// tp/distributed_transformer.cpp: see the header.
#include "smp/tp/distributed_transformer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/check.h"
#include "smp/tp/primitives.h"
#include "tp/split_linear.h"
#include "tp/tensor_parallel.h"

namespace smp::nn {
namespace {

torch::nn::LayerNorm norm_of(torch::nn::Module& parent, const char* name, bool wanted,
                             std::int64_t size, double epsilon) {
  if (!wanted) return nullptr;
  return parent.register_module(
      name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({size}).eps(epsilon)));
}

at::Tensor normalized(torch::nn::LayerNorm& norm, const at::Tensor& x) {
  return norm.is_empty() ? x : norm->forward(x);
}

template <class Options>
tp::NormalDeviation deviation_of(const Options& options) {
  return options.use_normal_initialization ? tp::NormalDeviation(options.initializer_range)
                                           : std::nullopt;
}

void require_a_norm(bool pre, bool post, const char* layer) {
  SMP_REQUIRE(pre || post, layer,
              ": neither pre_layernorm nor post_layernorm is set; set one of them, or both");
}

void require_divisible(std::int64_t size, const char* what, const char* layer) {
  const auto ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(size > 0 && size % ranks == 0, layer, ": ", what, ' ', size,
              " cannot be divided by the ", ranks,
              " tensor-parallel ranks; choose a number that can, or another "
              "tensor_parallel_degree");
}

void require_hidden(const at::Tensor& hidden, std::int64_t size, const char* what,
                    const char* layer) {
  SMP_REQUIRE(hidden.defined() && hidden.dim() == 3 && hidden.size(2) == size, layer, ": ", what,
              " is ", hidden.defined() ? base::concat(hidden.sizes()) : "undefined",
              ", expected [batch, sequence, ", size, "]; check hidden_size");
}

bool is_activation(const std::string& name) {
  return name == "gelu" || name == "gelu_tanh" || name == "relu";
}

at::Tensor activated(const at::Tensor& x, const std::string& activation) {
  if (activation == "relu") return at::relu(x);
  return at::gelu(x, activation == "gelu_tanh" ? "tanh" : "none");
}

constexpr const char* kAttention = "DistributedAttentionLayer";
constexpr const char* kOutput = "DistributedTransformerOutputLayer";

}  // namespace

// ---- attention ----

struct DistributedAttentionLayerImpl::Parts {
  torch::nn::LayerNorm pre_norm{nullptr}, post_norm{nullptr};
  tp::OutputSplitLinear query{nullptr}, key{nullptr}, value{nullptr};
  tp::InputSplitLinear dense{nullptr};
};

DistributedAttentionLayerImpl::DistributedAttentionLayerImpl(const AttentionLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>()) {
  require_a_norm(options.pre_layernorm, options.post_layernorm, kAttention);
  require_divisible(options.num_attention_heads, "num_attention_heads", kAttention);
  const auto channels = options.num_attention_heads * options.attention_head_size;
  const auto hidden = options.hidden_size;
  const auto deviation = deviation_of(options);
  auto& own = *parts_;
  own.pre_norm =
      norm_of(*this, "pre_norm", options.pre_layernorm, hidden, options.layernorm_epsilon);
  own.query = register_module("query", tp::OutputSplitLinear(hidden, channels, deviation));
  own.key = register_module("key", tp::OutputSplitLinear(hidden, channels, deviation));
  own.value = register_module("value", tp::OutputSplitLinear(hidden, channels, deviation));
  own.dense = register_module("dense", tp::InputSplitLinear(channels, hidden, deviation));
  own.post_norm =
      norm_of(*this, "post_norm", options.post_layernorm, hidden, options.layernorm_epsilon);
}

DistributedAttentionLayerImpl::~DistributedAttentionLayerImpl() = default;

at::Tensor DistributedAttentionLayerImpl::forward(const at::Tensor& hidden, const at::Tensor& mask,
                                                  const at::Tensor& cross_states) {
  require_hidden(hidden, options.hidden_size, "hidden", kAttention);
  if (options.cross_attention) {
    require_hidden(cross_states, options.hidden_size, "cross_states", kAttention);
  } else {
    SMP_REQUIRE(!cross_states.defined(), kAttention,
                ": cross_states without cross_attention; set that option, or leave them out");
  }
  auto& own = *parts_;
  const auto queries = fused_allgather_for_tp(normalized(own.pre_norm, hidden), 0);
  const auto source = options.cross_attention ? fused_allgather_for_tp(cross_states, 0) : queries;
  const bool masks_differ = mask.defined() && mask.size(0) != 1;
  const auto all_masks = masks_differ ? fused_allgather_for_tp(mask, 0) : mask;
  const auto sums = own.dense->forward(attend(queries, source, all_masks));
  const auto output = reduce_scatter_for_tp(sums, 0) + own.dense->bias;
  const auto dropped = at::dropout(output, options.hidden_dropout_prob, is_training());
  return normalized(own.post_norm, hidden + dropped);
}

/// [.., S, A/T·D] -> [.., A/T, S, D].
at::Tensor DistributedAttentionLayerImpl::heads_of(const at::Tensor& channels) const {
  return channels.view({channels.size(0), channels.size(1), -1, options.attention_head_size})
      .transpose(1, 2);
}

/// This rank's heads, of all ranks' samples: [T·B, S, A/T·D].
at::Tensor DistributedAttentionLayerImpl::attend(const at::Tensor& queries,
                                                 const at::Tensor& source, const at::Tensor& mask) {
  auto& own = *parts_;
  const auto q = heads_of(own.query->forward(queries));
  const auto k = heads_of(own.key->forward(source));
  const auto v = heads_of(own.value->forward(source));
  const auto scale = std::sqrt(static_cast<double>(options.attention_head_size));
  auto scores = at::matmul(q, k.transpose(-1, -2)) / scale;
  if (options.causal_mask_size) {
    const auto longest = *options.causal_mask_size;
    SMP_REQUIRE(queries.size(1) <= longest, kAttention, ": a sequence of ", queries.size(1),
                " positions, but causal_mask_size is ", longest, "; raise it");
    const auto later =
        at::ones({queries.size(1), source.size(1)}, scores.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  if (mask.defined()) scores = scores + mask;
  const auto probabilities =
      at::dropout(at::softmax(scores, -1), options.attention_dropout_prob, is_training());
  const auto mixed = at::matmul(probabilities, v).transpose(1, 2);
  return mixed.reshape({mixed.size(0), mixed.size(1), -1});
}

// ---- two products ----

struct DistributedTransformerOutputLayerImpl::Parts {
  torch::nn::LayerNorm pre_norm{nullptr}, post_norm{nullptr};
  tp::OutputSplitLinear first{nullptr};
  tp::InputSplitLinear second{nullptr};
};

DistributedTransformerOutputLayerImpl::DistributedTransformerOutputLayerImpl(
    const TransformerOutputLayerOptions& with)
    : options(with), parts_(std::make_shared<Parts>()) {
  require_a_norm(options.pre_layernorm, options.post_layernorm, kOutput);
  require_divisible(options.intermediate_size, "intermediate_size", kOutput);
  SMP_REQUIRE(is_activation(options.activation), kOutput, ": activation \"", options.activation,
              "\"; expected gelu, gelu_tanh or relu");
  const auto hidden = options.hidden_size;
  const auto deviation = deviation_of(options);
  auto& own = *parts_;
  own.pre_norm =
      norm_of(*this, "pre_norm", options.pre_layernorm, hidden, options.layernorm_epsilon);
  own.first =
      register_module("first", tp::OutputSplitLinear(hidden, options.intermediate_size, deviation));
  own.second =
      register_module("second", tp::InputSplitLinear(options.intermediate_size, hidden, deviation));
  own.post_norm =
      norm_of(*this, "post_norm", options.post_layernorm, hidden, options.layernorm_epsilon);
}

DistributedTransformerOutputLayerImpl::~DistributedTransformerOutputLayerImpl() = default;

at::Tensor DistributedTransformerOutputLayerImpl::forward(const at::Tensor& hidden) {
  require_hidden(hidden, options.hidden_size, "hidden", kOutput);
  auto& own = *parts_;
  const auto all = fused_allgather_for_tp(normalized(own.pre_norm, hidden), 0);
  const auto active = activated(own.first->forward(all), options.activation);
  const auto output = reduce_scatter_for_tp(own.second->forward(active), 0) + own.second->bias;
  const auto dropped = at::dropout(output, options.hidden_dropout_prob, is_training());
  return normalized(own.post_norm, hidden + dropped);
}

// ---- both ----

DistributedTransformerLayerImpl::DistributedTransformerLayerImpl(
    const AttentionLayerOptions& with, const TransformerOutputLayerOptions& output_options) {
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
  state.hidden = attention(state.hidden, state.mask, at::Tensor());
  if (!cross_attention.is_empty()) {
    state.hidden = cross_attention(state.hidden, state.cross_mask, state.cross_states);
  }
  state.hidden = output(state.hidden);
  return state;
}

}  // namespace smp::nn
