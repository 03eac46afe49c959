// Gradients of gradients through sliced layers equal those of one process, also where ranks have
// nothing of a layer: no heads, no tokens of a vocabulary, no experts.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "smp/tp.h"
#include "tp/layer_comparison.h"
#include "tp/mixtures.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace gradient_penalties_test {

constexpr std::int64_t kWidth = 8, kBatch = 2, kLength = 3;

/// LibTorch's fast kernels of attention have no second derivatives.
class WithoutFlash {
 public:
  WithoutFlash() { at::globalContext().setSDPUseFlash(false); }
  ~WithoutFlash() { at::globalContext().setSDPUseFlash(true); }
  WithoutFlash(const WithoutFlash&) = delete;
  WithoutFlash& operator=(const WithoutFlash&) = delete;
};

/// The gradient of a number by the input, with its history: of LibTorch in one process, on ranks of
/// our executor.
at::Tensor slope(const at::Tensor& number, const at::Tensor& input) {
  if (TensorParallel::local().get() == nullptr) {
    return torch::autograd::grad({number}, {input}, {}, true, true)[0];
  }
  using torch::autograd::impl::gradient_edge;
  const server::BackwardOptions options{
      .keep_graph = true, .create_graph = true, .accumulate = false};
  return server::run_backward({gradient_edge(number)}, {at::ones_like(number)}, options,
                              {gradient_edge(input)})[0];
}

/// The squares of so many derivatives of what `Layer` gives. The first is of a number that is
/// linear in that: a second pass comes to the layer through the gradients of what is inside of it
/// alone.
template <class Layer, int derivatives = 1>
struct PenalisedImpl : Layer {
  using Layer::Layer;
  at::Tensor forward(const at::Tensor& x) {
    const auto results = Layer::forward(x);
    auto number = (results * weights_like(results, 0)).sum();
    auto penalties = at::zeros_like(x.detach());
    for (int i = 0; i < derivatives; ++i) {
      const auto gradient = slope(number, x);
      penalties = penalties + gradient.square();
      number = gradient.pow(3).sum();
    }
    auto nothing = 0 * x.sum();  // so that all have gradients
    for (const auto& parameter : this->parameters()) nothing = nothing + 0 * parameter.sum();
    return penalties + nothing;
  }
};

/// A layer that takes more than its input.
template <class Layer>
struct BoundImpl : torch::nn::Module {
  template <class... Arguments>
  explicit BoundImpl(const Arguments&... arguments)
      : layer(register_module("layer", Layer(arguments...))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x, at::Tensor(), at::Tensor()); }
  Layer layer;
};

nn::GroupedQueryAttentionOptions grouped(std::int64_t heads, std::int64_t keys) {
  return nn::GroupedQueryAttentionOptions(kWidth, heads)
      .kv_heads(keys)
      .rotary(nn::RotaryEmbeddingOptions(2).rope_theta(50));
}

struct Heads {
  int ranks;
  std::int64_t queries, keys;
};

/// Ranks with fewer heads than others, with none, and with keys of others.
const std::vector<Heads> kHeads{{2, 3, 3}, {2, 1, 1}, {4, 6, 2}, {4, 5, 5}, {4, 3, 1}, {4, 8, 2}};

template <class Plain, class Sliced>
void expect_attention_as_plain(const nn::GroupedQueryAttentionOptions& options, int ranks,
                               const char* layout) {
  SCOPED_TRACE(testing::Message() << options.heads() << " heads, " << options.kv_heads()
                                  << " of keys, " << ranks << " ranks, " << layout);
  expect_as_plain([&] { return std::make_shared<Plain>(options); },
                  [&] { return std::make_shared<Sliced>(options, std::string(layout)); },
                  numbers(ranks, {kBatch, kLength, kWidth}), 1e-12, at::kDouble,
                  {"k_proj", "v_proj", "q_norm", "k_norm"});
}

TEST(GradientPenalties, OfGroupedQueryAttention) {
  const WithoutFlash exact;
  using Plain = BoundImpl<nn::GroupedQueryAttention>;
  using Sliced = BoundImpl<nn::DistributedGroupedQueryAttention>;
  for (const auto& heads : kHeads) {
    for (const auto* layout : kLayouts) {
      const auto plain = grouped(heads.queries, heads.keys);
      expect_attention_as_plain<PenalisedImpl<Plain>, PenalisedImpl<Sliced>>(plain, heads.ranks,
                                                                             layout);
      auto normed = plain;
      normed.qk_norm_eps(1e-2).window(2);
      expect_attention_as_plain<PenalisedImpl<Plain>, PenalisedImpl<Sliced>>(normed, heads.ranks,
                                                                             layout);
    }
  }
  for (const auto* layout : kLayouts) {
    expect_attention_as_plain<PenalisedImpl<Plain, 3>, PenalisedImpl<Sliced, 3>>(grouped(6, 2), 4,
                                                                                 layout);
  }
}

/// A layer whose mask, and the states of another sequence, are made of its input.
template <class Attention>
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(const AttentionLayerOptions& options)
      : crosses(options.cross_attention), layer(register_module("layer", Attention(options))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto mask = x.select(2, 0).unsqueeze(1).unsqueeze(1);
    return layer->forward(x, mask, crosses ? x.tanh() : at::Tensor());
  }
  const bool crosses;
  Attention layer;
};

/// All ranks add a mask to scores, and the masks of all are gathered: also by a rank without heads.
TEST(GradientPenalties, OfAttentionWithMasksThatHaveGradients) {
  const WithoutFlash exact;
  for (const auto& heads : kHeads) {
    for (const auto* layout : kLayouts) {
      for (const bool crosses : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << heads.queries << " heads, " << heads.keys << " of keys, " << heads.ranks
                     << " ranks, " << layout << (crosses ? ", another sequence" : ""));
        auto options = attention_options();
        options.num_attention_heads = heads.queries;
        options.num_key_value_heads = heads.keys;
        options.cross_attention = crosses;
        options.optimize = layout;
        using Plain = PenalisedImpl<MaskedImpl<PlainAttention>>;
        using Sliced = PenalisedImpl<MaskedImpl<nn::DistributedAttentionLayer>>;
        expect_as_plain([&] { return std::make_shared<Plain>(options); },
                        [&] { return std::make_shared<Sliced>(options); },
                        numbers(heads.ranks, {kBatch, kLength, kHidden}), 1e-12, at::kDouble,
                        {"key.", "value."});
      }
    }
  }
}

/// Two blocks, between which a sequence stays cut.
template <class Layer>
struct RowImpl : torch::nn::Module {
  template <class... Arguments>
  explicit RowImpl(const Arguments&... arguments)
      : first(register_module("first", Layer(arguments...))),
        second(register_module("second", Layer(arguments...))) {}
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x)); }
  Layer first, second;
};

TEST(GradientPenalties, OfBlocks) {
  const WithoutFlash exact;
  for (const auto& heads : {Heads{2, 3, 1}, Heads{4, 6, 2}, Heads{4, 3, 3}}) {
    const nn::DecoderLayerOptions options(grouped(heads.queries, heads.keys).qk_norm_eps(1e-2),
                                          nn::GatedMlpOptions(kWidth, 3),
                                          nn::RMSNormOptions(kWidth).eps(1e-2));
    for (const std::string layout : {"speed", "memory", "sequence"}) {
      const bool cut = layout == "sequence";
      std::vector<std::string> summed{"k_proj", "v_proj", "q_norm", "k_norm"};
      if (cut) summed.emplace_back("layernorm");
      for (const auto batches : {Batches::kPrescaled, Batches::kOwn}) {
        if (cut && batches == Batches::kOwn) continue;
        SCOPED_TRACE(testing::Message() << heads.queries << " heads, " << layout);
        using Plain = PenalisedImpl<RowImpl<nn::DecoderLayer>>;
        using Sliced = PenalisedImpl<RowImpl<nn::DistributedDecoderLayer>>;
        const int samples = batches == Batches::kOwn ? heads.ranks : 1;
        expect_as_plain_with(
            batches, heads.ranks, [&] { return std::make_shared<Plain>(options); },
            [&] { return std::make_shared<Sliced>(options, layout); },
            numbers(samples, {kBatch, kLength, kWidth}), 1e-12, at::kDouble, summed);
      }
    }
  }
}

TEST(GradientPenalties, OfNetworksWithAGate) {
  using Plain = PenalisedImpl<nn::GatedMlpImpl>;
  using Sliced = PenalisedImpl<nn::DistributedGatedMlpImpl>;
  for (const std::int64_t inner : {1, 3, 5}) {
    for (const std::string layout : kLayouts) {
      SCOPED_TRACE(testing::Message() << inner << " inner channels, " << layout);
      const nn::GatedMlpOptions options(kWidth, inner);
      expect_as_plain([&] { return std::make_shared<Plain>(options); },
                      [&] { return std::make_shared<Sliced>(options, layout); },
                      numbers(4, {kBatch, kLength, kWidth}), 1e-12);
    }
  }
}

at::IntArrayRef rows_of(const at::Tensor& x) { return x.sizes().slice(0, x.dim() - 1); }

struct PlainTableImpl : torch::nn::Module {
  PlainTableImpl(std::int64_t tokens, bool scores)
      : of_scores(scores), table(register_module("table", torch::nn::Embedding(tokens, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto scores = torch::linear(x, table->weight);
    if (of_scores) return scores.square().sum(-1);
    return scores.logsumexp(-1) - scores.select(-1, 0);
  }
  const bool of_scores;
  torch::nn::Embedding table;
};

struct SlicedTableImpl : torch::nn::Module {
  SlicedTableImpl(std::int64_t tokens, bool scores)
      : of_scores(scores),
        table(register_module("table", nn::DistributedVocabulary(tokens, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    if (of_scores) return table->scores(x).square().sum(-1);
    return table->losses(x, at::zeros(rows_of(x), at::kLong));
  }
  const bool of_scores;
  nn::DistributedVocabulary table;
};

/// Of 5 tokens on 4 ranks the third has one, and the last none.
TEST(GradientPenalties, OfVocabularies) {
  using Plain = PenalisedImpl<PlainTableImpl, 2>;
  using Sliced = PenalisedImpl<SlicedTableImpl, 2>;
  for (const std::int64_t tokens : {2, 5, 9}) {
    for (const bool scores : {false, true}) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens" << (scores ? ", scores" : ""));
      expect_as_plain([&] { return std::make_shared<Plain>(tokens, scores); },
                      [&] { return std::make_shared<Sliced>(tokens, scores); },
                      numbers(4, {kBatch, kLength, kWidth}), 1e-12);
    }
  }
}

/// Experts that no token chooses, on ranks that have others, that have no others, or that have
/// none.
TEST(GradientPenalties, OfMixturesOfExperts) {
  using Plain = PenalisedImpl<PlainMixtureImpl>;
  using Sliced = PenalisedImpl<SlicedMixtureImpl>;
  for (const std::int64_t experts : {1, 3, 5, 8}) {
    for (const double bent : {0, 50}) {
      SCOPED_TRACE(testing::Message() << experts << " experts, bent by " << bent);
      nn::MixtureOfExpertsOptions options(nn::GatedMlpOptions(kWidth, 3), experts, 1);
      options.normalized(false);
      const auto samples = numbers(4, {kBatch, kLength, kWidth});
      expect_as_plain([&] { return std::make_shared<Plain>(options, bent); },
                      [&] { return std::make_shared<Sliced>(options, bent); }, samples, 1e-12);
    }
  }
}

}  // namespace gradient_penalties_test
}  // namespace smp::tp
