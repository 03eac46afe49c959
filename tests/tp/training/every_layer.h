// tp/training/every_layer.h: a small language model in which every sliced layer of today's models
// is used, beside the same model of plain layers, and what one process makes of that.
//
// B rows of a batch, S tokens.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "smp/smp.h"
#include "smp/tp.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace every_layer {

constexpr int kSteps = 4, kMicrobatches = 2;
constexpr std::int64_t kRows = 4, kTokens = 5, kVocabulary = 11, kWidth = 8, kExperts = 3;

/// Nothing that is dealt to ranks can be divided by 4, and 3 experts not by 2.
inline nn::GroupedQueryAttentionOptions grouped() {
  return nn::GroupedQueryAttentionOptions(kWidth, 6).kv_heads(2).rotary(
      nn::RotaryEmbeddingOptions(4));
}

/// Attention and products of T5's shape, whose first layer has a table of positions, and of
/// Llama's; 3 heads, and 2 of keys for 6.
enum class Shape { kFirst, kRelative, kRotary };

inline AttentionLayerOptions attention_of(Shape shape) {
  auto options = attention_options();
  options.num_attention_heads = shape == Shape::kRotary ? 6 : 3;
  options.attention_head_size = 4;
  options.norm = "rms";
  options.pre_layernorm = true;
  options.post_layernorm = options.bias = options.output_bias = false;
  options.causal_mask_size = kTokens;
  if (shape == Shape::kRotary) {
    options.num_key_value_heads = 2;
    options.rotary = nn::RotaryEmbeddingOptions(options.attention_head_size);
  } else {
    options.attention_scale = 1;
  }
  if (shape == Shape::kFirst) options.relative_positions = {.num_buckets = 4, .max_distance = 3};
  return options;
}

inline TransformerOutputLayerOptions output_of(Shape shape) {
  auto options = output_options();
  options.norm = "rms";
  options.pre_layernorm = true;
  options.post_layernorm = options.bias = false;
  options.activation = shape == Shape::kRotary ? "swiglu" : "geglu_tanh";
  return options;
}

/// Losses of all ranks' rows that no rank has scores of at once.
class SlicedHeadImpl : public DistributedModule {
 public:
  SlicedHeadImpl() {
    weight = register_drawn_slice(
        "weight", {kVocabulary, kWidth}, 0,
        [](const at::Tensor& rows, std::int64_t) { rows.normal_(0, 1); }, 1);
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels) {
    ChunkedCrossEntropyOptions options;
    options.num_classes = kVocabulary;
    options.most_scores = 3 * weight.size(0);
    return chunked_cross_entropy_for_tp(whole_batch_for_tp(hidden), weight,
                                        whole_batch_for_tp(labels), options);
  }
  at::Tensor weight;
};
SMP_MODULE(SlicedHead);

struct PlainHeadImpl : torch::nn::Module {
  PlainHeadImpl() {
    weight = register_parameter("weight", torch::empty({kVocabulary, kWidth}).normal_(0, 1));
  }
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& labels) {
    const auto scores = at::linear(hidden, weight).transpose(1, 2);
    namespace functional = torch::nn::functional;
    return functional::cross_entropy(scores, labels,
                                     functional::CrossEntropyFuncOptions().reduction(torch::kNone));
  }
  at::Tensor weight;
};
TORCH_MODULE(PlainHead);

struct Sliced {
  using Table = nn::DistributedVocabulary;
  using Block = nn::DistributedDecoderLayer;
  using Attention = nn::DistributedGroupedQueryAttention;
  using Mlp = nn::DistributedGatedMlp;
  using Mixture = nn::DistributedMixtureOfExperts;
  using Head = SlicedHead;
  using Layer = nn::DistributedTransformerLayer;
};

struct Plain {
  using Table = torch::nn::Embedding;
  using Block = nn::DecoderLayer;
  using Attention = nn::GroupedQueryAttention;
  using Mlp = nn::GatedMlp;
  using Mixture = nn::MixtureOfExperts;
  using Head = PlainHead;
  using Layer = PlainLayer;
};

template <class Layers>
struct NetOf : torch::nn::Module {
  /// Returns the mean loss of predicting each next one of `tokens` [B, S + 1], with that of the
  /// balance of the experts.
  at::Tensor forward(const at::Tensor& tokens) {
    auto x = after(block(table(tokens.narrow(1, 0, kTokens))));
    x = x + attention(norm(x));
    x = x + mlp(norm(x));
    x = relative(first(TransformerState{.hidden = x})).hidden;
    x = rotary(TransformerState{.hidden = x}).hidden;
    const auto [mixed, balance] = mixture(x);
    // 16 bits would round the mean.
    const auto losses = head(last(x + mixed), tokens.narrow(1, 1, kTokens));
    const bool wide = losses.scalar_type() == at::kDouble;
    return losses.mean(wide ? at::kDouble : at::kFloat) + 0.1 * balance;
  }

  typename Layers::Table table =
      register_module("table", typename Layers::Table(kVocabulary, kWidth));
  typename Layers::Block block = register_module(
      "block", typename Layers::Block(nn::DecoderLayerOptions(
                   grouped().qk_norm_eps(1e-6).bias(true).output_bias(true),
                   nn::GatedMlpOptions(kWidth, 10).bias(true), nn::RMSNormOptions(kWidth))));
  typename Layers::Block after =
      register_module("after", typename Layers::Block(nn::DecoderLayerOptions(
                                   grouped(), nn::GatedMlpOptions(kWidth, 9),
                                   nn::RMSNormOptions(kWidth).unit_offset(true))));
  typename Layers::Attention attention = register_module(
      "attention", typename Layers::Attention(grouped().bias(true).output_bias(true).window(3)));
  typename Layers::Mlp mlp = register_module(
      "mlp", typename Layers::Mlp(nn::GatedMlpOptions(kWidth, 9).bias(true).activation(
                 nn::GateActivation::kGeluTanh)));
  typename Layers::Mixture mixture = register_module(
      "mixture", typename Layers::Mixture(
                     nn::MixtureOfExpertsOptions(nn::GatedMlpOptions(kWidth, 6), kExperts, 2)
                         .shared_inner_width(5)));
  static typename Layers::Layer layer_of(Shape shape) {
    return typename Layers::Layer(attention_of(shape), output_of(shape));
  }
  typename Layers::Layer first = register_module("first", layer_of(Shape::kFirst));
  typename Layers::Layer relative = register_module("relative", layer_of(Shape::kRelative));
  typename Layers::Layer rotary = register_module("rotary", layer_of(Shape::kRotary));
  nn::RMSNorm norm = register_module("norm", nn::RMSNorm(nn::RMSNormOptions(kWidth)));
  nn::RMSNorm last =
      register_module("last", nn::RMSNorm(nn::RMSNormOptions(kWidth).unit_offset(true)));
  typename Layers::Head head = register_module("head", typename Layers::Head());
};

struct SlicedNetImpl : NetOf<Sliced> {};
SMP_MODULE(SlicedNet);
using PlainNet = NetOf<Plain>;

inline at::Tensor tokens_of(int step, int batch) {
  const auto n = at::arange(kRows * (kTokens + 1), at::kLong);
  return at::remainder(n * n + 3 * n + 31 * step + 7 * batch, kVocabulary)
      .view({kRows, kTokens + 1});
}

inline torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

using Values = std::map<std::string, at::Tensor>;

/// Returns tensors under the names of the sliced model, where experts are stacked.
inline Values with_stacked_experts(const Values& plain) {
  Values values;
  const std::string experts = "mixture.experts.", weight = ".weight";
  for (const auto& [name, value] : plain) {
    if (name.rfind(experts, 0) != 0) {
      values[name] = value;
      continue;
    }
    const auto dot = name.find('.', experts.size());
    const auto projection = name.substr(dot + 1, name.size() - dot - 1 - weight.size());
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < kExperts; ++i) {
      all.push_back(plain.at(experts + std::to_string(i) + '.' + projection + weight));
    }
    values[experts + projection] = at::stack(all);
  }
  return values;
}

/// What one process has after each step.
struct Reference {
  std::vector<double> losses;
  std::vector<Values> gradients;
  Values parameters;
};

/// Trains in float64. @param stored  the type to which values are rounded at the start
inline Reference train_in_one_process(int batches, at::ScalarType stored = at::kDouble) {
  Reference reference;
  torch::manual_seed(3);
  PlainNet net;
  net.to(stored);
  net.to(torch::kDouble);
  auto optimizer = sgd(net.parameters());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double mean = 0;
    for (int batch = 0; batch < batches; ++batch) {
      for (const auto& part : tokens_of(step, batch).chunk(kMicrobatches)) {
        const auto loss = net.forward(part) / (batches * kMicrobatches);
        mean += loss.item<double>();
        loss.backward();
      }
    }
    reference.losses.push_back(mean);
    Values gradients;
    for (const auto& item : net.named_parameters()) {
      gradients[item.key()] = item.value().grad().clone();
    }
    reference.gradients.push_back(with_stacked_experts(gradients));
    optimizer.step();
  }
  Values parameters;
  for (const auto& item : net.named_parameters()) parameters[item.key()] = item.value().detach();
  reference.parameters = with_stacked_experts(parameters);
  return reference;
}

}  // namespace every_layer
}  // namespace smp::tp
