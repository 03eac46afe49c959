// tp/layers/distributed_lm_head.cpp: see the header.
#include "smp/tp/distributed_lm_head.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/embedding.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "tp/group/layout.h"
#include "tp/layers/block_norms.h"
#include "tp/layers/transformer_block.h"
#include "tp/slices/sliced_state.h"

namespace smp::nn {
namespace {

constexpr const char* kModel = "DistributedTransformerLMHead";

const TransformerLMHeadOptions& checked(const TransformerLMHeadOptions& options) {
  SMP_REQUIRE(options.attention.hidden_size == options.output.hidden_size, kModel,
              ": hidden_size is ", options.attention.hidden_size, " in attention and ",
              options.output.hidden_size, " in output; set both to the same");
  return options;
}

/// Makes a small embedding table that each rank has as a whole, unlike the table of the tokens.
torch::nn::Embedding table_of(std::int64_t rows, const AttentionLayerOptions& options) {
  torch::nn::Embedding table(rows, options.hidden_size);
  if (options.use_normal_initialization) {
    const at::NoGradGuard no_grad;
    table->weight.normal_(0, options.initializer_range);
  }
  return table;
}

}  // namespace

struct DistributedTransformerLMHeadImpl::Parts {
  DistributedVocabulary vocabulary{nullptr};
  torch::nn::Embedding positions{nullptr}, types{nullptr};
  std::vector<DistributedTransformerLayer> layers;
  tp::BlockNorm norm;   // of nothing, if layers have theirs after
  bool slices = false;  // between layers, which have layout "memory"
};

DistributedTransformerLMHeadImpl::DistributedTransformerLMHeadImpl(
    const TransformerLMHeadOptions& with)
    : options(checked(with)), parts_(std::make_shared<Parts>()) {
  const auto& attention = options.attention;
  const auto hidden = attention.hidden_size;
  auto& own = *parts_;
  own.vocabulary = register_module(
      "vocabulary", DistributedVocabulary(options.vocab_size, hidden,
                                          attention.use_normal_initialization
                                              ? std::optional(attention.initializer_range)
                                              : std::nullopt));
  if (options.num_positions > 0) {
    own.positions = register_module("positions", table_of(options.num_positions, attention));
  }
  if (options.num_token_types > 0) {
    own.types = register_module("types", table_of(options.num_token_types, attention));
  }
  own.slices = tp::layout_of(attention.optimize, kModel) == tp::Layout::kMemory;
  for (std::int64_t i = 0; i < options.num_layers; ++i) {
    own.layers.push_back(register_module(
        "layer" + std::to_string(i),
        DistributedTransformerLayer(tp::attention_of_layer(attention, i), options.output)));
  }
  if (!attention.pre_layernorm) return;
  own.norm = tp::BlockNorm(attention.norm, tp::Layout::kSpeed, hidden, attention.layernorm_epsilon,
                           kModel);
  own.norm.register_at(*this, "norm");
}

DistributedTransformerLMHeadImpl::~DistributedTransformerLMHeadImpl() = default;

void DistributedTransformerLMHeadImpl::require_fitting(const LanguageInputs& inputs) const {
  const auto& tokens = inputs.tokens;
  const auto longest = options.num_positions;
  SMP_REQUIRE(tokens.defined() && tokens.dim() == 2, kModel, ": tokens are ",
              tokens.defined() ? base::concat(tokens.sizes()) : "undefined", ", expected [batch, ",
              longest > 0 ? base::concat("at most ", longest) : "sequence", "]");
  SMP_REQUIRE(inputs.positions.defined() || longest == 0 || tokens.size(1) <= longest, kModel,
              ": tokens are ", tokens.sizes(), ", expected [batch, at most ", longest,
              "]; see num_positions");
  SMP_REQUIRE(!inputs.positions.defined() || longest > 0 || options.attention.rotary, kModel,
              ": positions, but the model has no table of them and layers have no rotary "
              "positions; set num_positions or attention.rotary, or leave them out");
  SMP_REQUIRE(!inputs.types.defined() || !parts_->types.is_empty(), kModel,
              ": token types without num_token_types; set that option, or leave them out");
  SMP_REQUIRE(inputs.cross_states.defined() == options.attention.cross_attention, kModel, ": ",
              inputs.cross_states.defined()
                  ? "cross_states, but layers have no cross-attention; set the option "
                    "attention.cross_attention, or leave them out"
                  : "layers have cross-attention; give them cross_states (hidden, scores or "
                    "losses_of)");
}

at::Tensor DistributedTransformerLMHeadImpl::embedded(const LanguageInputs& inputs) {
  auto& own = *parts_;
  const auto& tokens = inputs.tokens;
  auto sum = own.vocabulary(tokens);
  if (!own.positions.is_empty()) {
    sum = sum + own.positions(inputs.positions.defined()
                                  ? inputs.positions
                                  : at::arange(tokens.size(1), tokens.options()));
  }
  if (!own.types.is_empty()) {
    sum = sum + own.types(inputs.types.defined() ? inputs.types : at::zeros_like(tokens));
  }
  return at::dropout(sum, options.embedding_dropout_prob, is_training());
}

at::Tensor DistributedTransformerLMHeadImpl::hidden(const LanguageInputs& inputs) {
  require_fitting(inputs);
  auto& own = *parts_;
  TransformerState state;
  const auto embeddings = embedded(inputs);
  state.hidden = embeddings;
  state.mask = inputs.mask;
  state.cross_states = inputs.cross_states;
  state.cross_mask = inputs.cross_mask;
  if (options.attention.rotary) state.positions = inputs.positions;
  if (own.slices) state = tp::sliced(state);
  for (auto& layer : own.layers) state = layer(state);
  const auto last = own.slices ? tp::own_samples(state.hidden) : state.hidden;
  return own.norm(last, tp::Layout::kSpeed).to(embeddings.scalar_type());
}

at::Tensor DistributedTransformerLMHeadImpl::scores(const LanguageInputs& inputs) {
  return parts_->vocabulary->scores(hidden(inputs));
}

at::Tensor DistributedTransformerLMHeadImpl::losses_of(const LanguageInputs& inputs,
                                                       const at::Tensor& labels) {
  return parts_->vocabulary->losses(hidden(inputs), labels);
}

at::Tensor DistributedTransformerLMHeadImpl::forward(const at::Tensor& tokens,
                                                     const at::Tensor& mask,
                                                     const at::Tensor& types) {
  return scores({tokens, mask, types, {}, {}, {}});
}

at::Tensor DistributedTransformerLMHeadImpl::losses(const at::Tensor& tokens,
                                                    const at::Tensor& labels,
                                                    const at::Tensor& mask,
                                                    const at::Tensor& types) {
  return losses_of({tokens, mask, types, {}, {}, {}}, labels);
}

}  // namespace smp::nn
