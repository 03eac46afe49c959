// Arguments of the original's layers under the names of their options, and what LibTorch's own
// attention and norm do in place of the original's fused layers.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

#include "api/two_ranks.h"
#include "smp/tp.h"

namespace smp {
namespace layer_arguments_test {

using at::IntArrayRef;
using at::Tensor;

Config of_two() {
  Config config;
  config.pipeline_parallel_degree = 1;
  config.tensor_parallel_degree = 2;
  config.plan_cache = "off";
  return config;
}

AttentionLayerOptions attention_of_six_heads() {
  AttentionLayerOptions options;
  options.num_attention_heads = 6;
  options.attention_head_size = 5;
  options.hidden_size = 16;
  options.attention_dropout_prob = options.hidden_dropout_prob = 0;
  options.optimize = "speed";
  return options;
}

TransformerOutputLayerOptions output_of_forty() {
  TransformerOutputLayerOptions options;
  options.hidden_size = 16;
  options.intermediate_size = 40;
  options.hidden_dropout_prob = 0;
  options.optimize = "speed";
  return options;
}

/// The number of elements of all ranks, a slice counted by its part.
std::int64_t elements_of(const torch::nn::Module& module) {
  std::int64_t sum = 0;
  for (const auto& parameter : module.parameters()) sum += parameter.numel();
  return sum;
}

TEST(LayerArguments, SizesAreThoseOfTheWholeLayer) {
  run_local(
      2,
      [] {
        nn::DistributedLinear linear(torch::nn::LinearOptions(8, 6));
        EXPECT_EQ(linear->weight.sizes(), IntArrayRef({6, 4}));
        EXPECT_EQ(linear->bias.sizes(), IntArrayRef({6}));
        nn::DistributedEmbedding table(torch::nn::EmbeddingOptions(11, 6));
        EXPECT_EQ(table->weight.sizes(), IntArrayRef({11, 3}));

        const nn::DistributedAttentionLayer attention(attention_of_six_heads());
        // q, k, v: 3 of 6 heads of 5; the way back; a norm of 16.
        EXPECT_EQ(elements_of(*attention), 3 * (15 * 16 + 15) + (16 * 15 + 16) + 2 * 16);
        const nn::DistributedTransformerOutputLayer output(output_of_forty());
        EXPECT_EQ(elements_of(*output), (20 * 16 + 20) + (16 * 20 + 16) + 2 * 16);
        const auto layer = elements_of(*attention) + elements_of(*output);
        const nn::DistributedTransformer stack(attention_of_six_heads(), output_of_forty(), 3);
        EXPECT_EQ(stack->layers.size(), 3U);
        EXPECT_EQ(elements_of(*stack), 3 * layer);

        TransformerLMHeadOptions options{attention_of_six_heads(), output_of_forty()};
        options.num_layers = 2;
        options.vocab_size = 30;
        options.num_positions = 9;
        options.num_token_types = 2;
        const nn::DistributedTransformerLMHead model(options);
        const auto tables = (30 / 2 + 9 + 2) * 16;
        const auto rest = elements_of(*model) - 2 * layer - tables;
        EXPECT_EQ(rest % 32, 0) << "norms of 16 alone are left";
        EXPECT_LE(rest, 32);
        options.num_positions = 10;
        EXPECT_EQ(elements_of(*nn::DistributedTransformerLMHead(options)),
                  elements_of(*model) + 16);
      },
      of_two());
}

TEST(LayerArguments, ATableStartsFromTheGivenOne) {
  torch::manual_seed(1);
  const auto whole = torch::randn({7, 4}) * 0.02;
  run_local(
      2,
      [&] {
        nn::DistributedEmbedding table(torch::nn::EmbeddingOptions(7, 4)._weight(whole));
        EXPECT_TRUE(torch::equal(table->weight, whole.narrow(1, 2 * rank(), 2)));
        torch::manual_seed(5);
        nn::DistributedEmbedding other(torch::nn::EmbeddingOptions(4000, 4));
        EXPECT_NEAR(other->weight.std().item<double>(), 1, 0.05) << "as LibTorch's";
      },
      of_two());
}

/// A value far from zero shows whether its mean was taken away, and a small one the epsilon.
TEST(LayerArguments, NormsStandWhereTheyAreAskedFor) {
  run_local(
      2,
      [] {
        const auto x = torch::full({2, 3, 16}, 100.) + torch::randn({2, 3, 16});
        for (const bool before : {false, true}) {
          for (const bool after : {false, true}) {
            if (!before && !after) continue;
            auto attention = attention_of_six_heads();
            auto output = output_of_forty();
            attention.pre_layernorm = output.pre_layernorm = before;
            attention.post_layernorm = output.post_layernorm = after;
            nn::DistributedAttentionLayer one(attention);
            nn::DistributedTransformerOutputLayer two(output);
            for (const auto& y : {one(x, Tensor(), Tensor()), two(x)}) {
              EXPECT_EQ(y.abs().max().item<double>() < 10, after);
            }
            const auto norms = one->named_children();
            EXPECT_EQ(norms.contains("pre_norm"), before);
            EXPECT_EQ(norms.contains("post_norm"), after);
          }
        }
        auto attention = attention_of_six_heads();
        auto output = output_of_forty();
        attention.layernorm_epsilon = output.layernorm_epsilon = 1e6;
        nn::DistributedAttentionLayer one(attention);
        nn::DistributedTransformerOutputLayer two(output);
        EXPECT_LT(one(x, Tensor(), Tensor()).abs().max().item<double>(), 0.1);
        EXPECT_LT(two(x).abs().max().item<double>(), 0.1);
      },
      of_two());
}

TEST(LayerArguments, WeightsStartWithTheGivenDeviation) {
  run_local(
      2,
      [] {
        torch::manual_seed(1);
        const auto deviation_of = [](const auto& layer) {
          std::vector<Tensor> weights;
          for (const auto& item : layer->named_parameters()) {
            if (item.value().dim() == 2) weights.push_back(item.value().flatten());
          }
          return torch::cat(weights).std().template item<double>();
        };
        auto attention = attention_of_six_heads();
        auto output = output_of_forty();
        attention.hidden_size = output.hidden_size = 64;
        attention.use_normal_initialization = output.use_normal_initialization = true;
        attention.initializer_range = output.initializer_range = 0.5;
        EXPECT_NEAR(deviation_of(nn::DistributedAttentionLayer(attention)), 0.5, 0.02);
        EXPECT_NEAR(deviation_of(nn::DistributedTransformerOutputLayer(output)), 0.5, 0.02);
        attention.use_normal_initialization = output.use_normal_initialization = false;
        EXPECT_LT(deviation_of(nn::DistributedAttentionLayer(attention)), 0.2);
        EXPECT_LT(deviation_of(nn::DistributedTransformerOutputLayer(output)), 0.2);
      },
      of_two());
}

/// Everything dropped: what is left of a layer is its residual; of attention whose scores are
/// dropped the bias of the way back.
TEST(LayerArguments, DropoutIsOfScoresAndOfTheHiddenState) {
  run_local(
      2,
      [] {
        const auto x = torch::randn({2, 3, 16});
        auto attention = attention_of_six_heads();
        attention.pre_layernorm = true;
        attention.post_layernorm = false;
        attention.hidden_dropout_prob = 1;
        nn::DistributedAttentionLayer hidden(attention);
        EXPECT_TRUE(torch::equal(hidden(x, Tensor(), Tensor()), x));
        hidden->eval();
        EXPECT_FALSE(torch::equal(hidden(x, Tensor(), Tensor()), x));

        attention.hidden_dropout_prob = 0;
        attention.attention_dropout_prob = 1;
        nn::DistributedAttentionLayer scores(attention);
        const auto added = scores(x, Tensor(), Tensor()) - x;
        EXPECT_TRUE(torch::allclose(added, added[0][0].expand_as(added), 1e-5, 1e-6));

        auto output = output_of_forty();
        output.pre_layernorm = true;
        output.post_layernorm = false;
        output.hidden_dropout_prob = 1;
        EXPECT_TRUE(torch::equal(nn::DistributedTransformerOutputLayer(output)(x), x));
      },
      of_two());
}

/// Float16's largest number is 65504; a residual of bfloat16 goes on.
TEST(LayerArguments, ResidualsOfBFloat16DoNotOverflow) {
  run_local(
      2,
      [] {
        auto output = output_of_forty();
        output.pre_layernorm = true;
        output.post_layernorm = false;
        nn::DistributedTransformerOutputLayer layer(output);
        layer->to(torch::kBFloat16);
        auto x = torch::full({2, 3, 16}, 1e5, torch::kBFloat16);
        for (int i = 0; i < 4; ++i) x = layer(x) + x;
        EXPECT_TRUE(torch::isfinite(x).all().item<bool>());
        EXPECT_GT(x.max().item<float>(), 1e6);
      },
      of_two());
}

struct DoubledImpl : DistributedModule {
  explicit DoubledImpl(const Tensor& whole) { register_slice("weight", whole, 1); }
  Tensor forward(const Tensor& x) { return x; }
};

TEST(LayerArguments, SlicesHaveTheTypeOfTheWhole) {
  run_local(
      2,
      [] {
        for (const auto type : {torch::kDouble, torch::kBFloat16, torch::kHalf}) {
          const DoubledImpl module(torch::ones({2, 4}, type));
          EXPECT_EQ(module.parameters()[0].scalar_type(), type);
          EXPECT_EQ(module.slice_dim("weight"), 1);
        }
      },
      of_two());
}

TEST(LayerArguments, CausalMasksAreNoBuffers) {
  run_local(
      2,
      [] {
        auto attention = attention_of_six_heads();
        attention.causal_mask_size = 9;
        const nn::DistributedTransformer stack(attention, output_of_forty(), 2);
        EXPECT_TRUE(stack->buffers().empty());
      },
      of_two());
}

// ---- LibTorch's own attention and norm ---------------------------------------------------------

/// softmax(q k^T scale) v, causal or not.
Tensor attention_by_formula(const Tensor& q, const Tensor& k, const Tensor& v, double scale,
                            bool causal, const Tensor& added = {}) {
  auto scores = torch::matmul(q, k.transpose(-2, -1)) * scale;
  if (added.defined()) scores = scores + added;
  if (causal) {
    const auto later = torch::ones_like(scores).triu(1).to(torch::kBool);
    scores = scores.masked_fill(later, -INFINITY);
  }
  return torch::matmul(scores.softmax(-1), v);
}

/// qkv [B, S, 3, H, D], as the original's layer takes it, to q, k and v [B, H, S, D].
std::vector<Tensor> apart(const Tensor& qkv) { return qkv.permute({2, 0, 3, 1, 4}).unbind(); }

TEST(LibTorchsAttention, IsTheFormulaOfTheFlashLayer) {
  const auto parts = apart(torch::randn({2, 5, 3, 4, 8}, torch::kDouble));
  const auto &q = parts[0], &k = parts[1], &v = parts[2];
  for (const bool causal : {false, true}) {
    for (const int layer : {0, 3}) {
      const double scale = 1 / (std::sqrt(8.) * (layer + 1));
      const auto ours = at::scaled_dot_product_attention(q, k, v, {}, 0, causal, scale);
      EXPECT_EQ(ours.sizes(), IntArrayRef({2, 4, 5, 8}));
      EXPECT_TRUE(torch::allclose(ours, attention_by_formula(q, k, v, scale, causal), 1e-12));
    }
    const auto unscaled = at::scaled_dot_product_attention(q, k, v, {}, 0, causal, 1.0);
    EXPECT_TRUE(torch::allclose(unscaled, attention_by_formula(q, k, v, 1, causal), 1e-12));
  }
  const auto dropped = at::scaled_dot_product_attention(q, k, v, {}, 1.0);
  EXPECT_EQ(dropped.abs().sum().item<double>(), 0);
}

TEST(LibTorchsAttention, IsThatOfScaledQueries) {
  const auto parts = apart(torch::randn({2, 5, 3, 4, 8}, torch::kDouble));
  const auto ours = at::scaled_dot_product_attention(parts[0] / 4, parts[1], parts[2]);
  EXPECT_TRUE(torch::allclose(
      ours, attention_by_formula(parts[0], parts[1], parts[2], 1 / (4 * std::sqrt(8.)), false),
      1e-12));
}

TEST(LibTorchsAttention, TakesSlopesOfHeadsAsItsMask) {
  const auto parts = apart(torch::randn({2, 5, 3, 4, 8}, torch::kDouble));
  const auto places = torch::arange(5., torch::kDouble);
  const auto distances = places.unsqueeze(0) - places.unsqueeze(1);
  const auto slopes = torch::pow(2., -2 * torch::arange(1., 5., torch::kDouble));
  const auto alibi = (slopes.view({1, 4, 1, 1}) * distances).contiguous();
  const auto ours = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], alibi);
  EXPECT_TRUE(torch::allclose(
      ours, attention_by_formula(parts[0], parts[1], parts[2], 1 / std::sqrt(8.), false, alibi),
      1e-12));
}

/// Added up in bfloat16, 4096 equal shares would stop at 256 of them.
TEST(LibTorchsAttention, AddsUpInFloat32) {
  const auto shares = torch::zeros({1, 4096}, torch::kBFloat16).softmax(1);
  EXPECT_EQ(shares.min().item<float>(), 1.f / 4096);
  const auto q = torch::zeros({1, 1, 4096, 8}, torch::kBFloat16);
  const auto out = at::scaled_dot_product_attention(q, q, torch::ones_like(q));
  EXPECT_NEAR(out.to(torch::kFloat).min().item<float>(), 1, 0.01);
}

/// Each product is 64 · 90 · 90, beyond float16's largest number.
TEST(LibTorchsAttention, DoesNotOverflowInFloat16) {
  auto q = torch::full({1, 1, 4, 64}, 90, torch::kHalf);
  const auto v = torch::arange(4.).view({1, 1, 4, 1}).expand({1, 1, 4, 64}).to(torch::kHalf);
  const auto out = at::scaled_dot_product_attention(q, q, v.contiguous());
  EXPECT_NEAR(out.to(torch::kFloat).mean().item<float>(), 1.5, 0.01);
}

TEST(LayerNormOfSmp, IsOneKernelWithTheValuesOfTheFormula) {
  smp::nn::LayerNorm norm(smp::nn::LayerNormOptions({6}).eps(1e-5));
  norm->to(torch::kDouble);
  const auto x = torch::randn({3, 6}, torch::kDouble);
  const auto centred = x - x.mean(1, true);
  const auto expected = centred / (centred.pow(2).mean(1, true) + 1e-5).sqrt();
  const auto y = norm(x);
  EXPECT_TRUE(torch::allclose(y, expected, 1e-12, 1e-14));
  EXPECT_EQ(y.grad_fn()->name(), "NativeLayerNormBackward0");
}

}  // namespace layer_arguments_test
}  // namespace smp
