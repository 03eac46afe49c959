// samples/gpt/gpt.cpp: see the header.
#include "gpt.h"

#include <map>
#include <stdexcept>

namespace gpt {
namespace {

const std::map<std::string, GptConfig>& presets() {
  static const std::map<std::string, GptConfig> all{
      {"tiny", {.length = 16, .width = 16, .heads = 4, .layers = 2}},
      {"demo", {}},
      {"small", {.length = 128, .width = 256, .heads = 8, .layers = 6}},
      {"gpt2", {.vocabulary = 50257, .length = 1024, .width = 768, .heads = 12, .layers = 12}}};
  return all;
}

nn::Embedding table(std::int64_t rows, std::int64_t width) {
  nn::Embedding made(rows, width);
  const torch::NoGradGuard no_grad;
  made->weight.normal_(0, kDeviation);
  return made;
}

nn::Linear head(const GptConfig& config) {
  nn::Linear made(nn::LinearOptions(config.width, config.vocabulary).bias(false));
  const torch::NoGradGuard no_grad;
  made->weight.normal_(0, kDeviation);
  return made;
}

}  // namespace

GptConfig GptConfig::preset(const std::string& name) {
  const auto found = presets().find(name);
  if (found == presets().end()) throw std::invalid_argument("no size called '" + name + "'");
  return found->second;
}

std::vector<std::string> GptConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

smp::AttentionLayerOptions GptConfig::attention() const {
  return {.num_attention_heads = heads,
          .attention_head_size = width / heads,
          .hidden_size = width,
          .attention_dropout_prob = 0,
          .hidden_dropout_prob = 0,
          .initializer_range = kDeviation,
          .use_normal_initialization = true,
          .causal_mask_size = length,
          .pre_layernorm = true,
          .post_layernorm = false};
}

smp::TransformerOutputLayerOptions GptConfig::output() const {
  return {.hidden_size = width,
          .intermediate_size = 4 * width,
          .hidden_dropout_prob = 0,
          .activation = "gelu_tanh",
          .initializer_range = kDeviation,
          .use_normal_initialization = true,
          .pre_layernorm = true,
          .post_layernorm = false};
}

Tensor loss_of(const Tensor& scores, const Tensor& next) {
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), next.flatten());
}

/// Modules are drawn in the same order, with the same draws, split or not.
GptImpl::GptImpl(const GptConfig& config) {
  const bool split = config.split_vocabulary;
  const auto vocabulary = [&] {
    return nn::DistributedVocabulary(config.vocabulary, config.width, kDeviation);
  };
  if (split) split_wte_ = register_module("wte", vocabulary());
  if (!split) wte_ = register_module("wte", table(config.vocabulary, config.width));
  wpe_ = register_module("wpe", table(config.length, config.width));
  h_ = register_module("h", nn::ModuleList());
  ln_f_ = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({config.width})));
  if (split) split_head_ = register_module("lm_head", vocabulary());
  if (!split) lm_head_ = register_module("lm_head", head(config));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    h_->push_back(nn::DistributedTransformerLayer(config.attention(), config.output()));
  }
}

Tensor GptImpl::hidden_of(const Tensor& tokens) {
  const auto positions = torch::arange(tokens.size(1), tokens.options());
  smp::TransformerState state;
  state.hidden = (wte_.is_empty() ? split_wte_(tokens) : wte_(tokens)) + wpe_(positions);
  for (const auto& layer : *h_) {
    state = layer->as<nn::DistributedTransformerLayer>()->forward(state);
  }
  return ln_f_(state.hidden);
}

Tensor GptImpl::forward(const Tensor& tokens) {
  const auto hidden = hidden_of(tokens);
  return lm_head_.is_empty() ? split_head_->scores(hidden) : lm_head_(hidden);
}

Tensor GptImpl::loss(const Tensor& tokens, const Tensor& next) {
  const auto hidden = hidden_of(tokens);
  return lm_head_.is_empty() ? split_head_->losses(hidden, next).mean()
                             : loss_of(lm_head_(hidden), next);
}

}  // namespace gpt
