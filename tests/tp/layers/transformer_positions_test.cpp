// How attention of transformer layers knows where tokens stand, against plain LibTorch: rotary and
// relative positions and ALiBi, with RMS norms and without biases; a residual in float32; how they
// are refused.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>

#include "smp/error.h"
#include "smp/tp/distributed_transformer.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/layers/position_biases.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace transformer_positions_test {

using testing::HasSubstr;

constexpr std::int64_t kBatch = 2, kLength = 7;

enum class Positions { kNone, kRotary, kDynamic, kRelative, kAlibi };
constexpr Positions kAll[] = {Positions::kNone, Positions::kRotary, Positions::kDynamic,
                              Positions::kRelative, Positions::kAlibi};

struct Case {
  Positions positions;
  std::int64_t heads, key_heads;
  bool is_causal;
};

AttentionLayerOptions options_of(const Case& with, const char* layout) {
  auto options = attention_options();
  options.num_attention_heads = with.heads;
  options.num_key_value_heads = with.key_heads;
  options.attention_head_size = 4;
  options.norm = "rms";
  options.pre_layernorm = true;
  options.post_layernorm = options.bias = options.output_bias = false;
  if (with.is_causal) options.causal_mask_size = kLength;
  options.optimize = layout;
  nn::RotaryEmbeddingOptions rotary(4);
  switch (with.positions) {
    case Positions::kNone:
      break;
    case Positions::kDynamic:
      rotary.scaling(nn::RotaryScaling::kDynamic).factor(2).max_positions(4);
      [[fallthrough]];
    case Positions::kRotary:
      options.rotary = rotary;
      break;
    case Positions::kRelative:
      options.relative_positions = {.num_buckets = 6, .max_distance = 5};
      options.attention_scale = 1;
      break;
    case Positions::kAlibi:
      options.alibi_bias_max = 8;
      break;
  }
  return options;
}

/// A layer with positions of its samples, if it turns by them, and with their mask.
template <class Attention>
struct PlacedImpl : torch::nn::Module {
  PlacedImpl(const AttentionLayerOptions& options, bool mask)
      : is_masked(mask), layer(register_module("layer", Attention(options))) {}
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor mask, positions;
    const auto value = x.detach().select(2, 0);  // [B, S]
    if (is_masked) mask = (value > 0.6).to(x.scalar_type()).unsqueeze(1).unsqueeze(1) * -1e4;
    if (layer->options.rotary && is_masked) {
      positions = at::arange(kLength) + (value.select(1, 0).unsqueeze(1) > 0).to(at::kLong) * 3;
    }
    return layer->forward(x, mask, at::Tensor(), positions);
  }
  bool is_masked;
  Attention layer;
};

TEST(DistributedAttentionLayer, KnowsPositionsAsPlainAttentionDoes) {
  int cases = 0;
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      for (const auto positions : kAll) {
        for (const auto& [heads, keys] : std::vector<std::pair<int, int>>{{4, 4}, {3, 3}, {6, 2}}) {
          for (const bool is_causal : {false, true}) {
            const bool mask = cases++ % 2 == 0;
            const auto options = options_of({positions, heads, keys, is_causal}, layout);
            SCOPED_TRACE(testing::Message()
                         << layout << ", " << size << " ranks, positions "
                         << static_cast<int>(positions) << ", " << heads << " heads, " << keys
                         << (is_causal ? ", causal" : "") << (mask ? ", mask" : ""));
            expect_as_plain(
                [&] { return std::make_shared<PlacedImpl<PlainAttention>>(options, mask); },
                [&] {
                  return std::make_shared<PlacedImpl<nn::DistributedAttentionLayer>>(options, mask);
                },
                numbers(size, {kBatch, kLength, kHidden}), 1e-12, at::kDouble,
                seen_in_parts(layout));
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 270);
}

TEST(DistributedTransformerOutputLayer, HasRmsNormsAndNoBiasesIfWanted) {
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      for (const bool before : {false, true}) {
        auto options = output_options();
        options.norm = "rms";
        options.bias = false;
        options.activation = "swiglu";
        options.pre_layernorm = before;
        options.post_layernorm = !before;
        options.optimize = layout;
        expect_as_plain([&] { return PlainOutput(options); },
                        [&] { return nn::DistributedTransformerOutputLayer(options); },
                        numbers(size, {kBatch, kLength, kHidden}), 1e-12, at::kDouble,
                        seen_in_parts(layout));
      }
    }
  }
}

/// Three layers, of which the first has the table.
struct PlainStackImpl : torch::nn::Module {
  explicit PlainStackImpl(AttentionLayerOptions options) {
    for (int i = 0; i < 3; ++i) {
      auto output = output_options();
      output.optimize = options.optimize;
      layers.push_back(register_module("layer" + std::to_string(i), PlainLayer(options, output)));
      options.relative_positions.reset();
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    TransformerState state{.hidden = x};
    for (auto& layer : layers) state = layer(state);
    return state.hidden;
  }
  std::vector<PlainLayer> layers;
};

struct StackImpl : torch::nn::Module {
  explicit StackImpl(const AttentionLayerOptions& options) : inner(nullptr) {
    auto output = output_options();
    output.optimize = options.optimize;
    inner = nn::DistributedTransformer(options, output, 3);
    for (std::size_t i = 0; i < 3; ++i) {
      register_module("layer" + std::to_string(i), inner->layers[i]);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    return inner->forward(TransformerState{.hidden = x}).hidden;
  }
  nn::DistributedTransformer inner;
};

TEST(DistributedTransformer, ReadsRelativePositionsInItsFirstLayer) {
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      for (const bool is_causal : {false, true}) {
        const auto options = options_of({Positions::kRelative, 3, 3, is_causal}, layout);
        SCOPED_TRACE(testing::Message() << layout << ", " << size << " ranks");
        expect_as_plain([&] { return std::make_shared<PlainStackImpl>(options); },
                        [&] { return std::make_shared<StackImpl>(options); },
                        numbers(size, {kBatch, kLength, kHidden}), 1e-11, at::kDouble,
                        seen_in_parts(layout));
      }
    }
  }
}

TEST(RelativePositions, HaveTheBucketsOfThePaper) {
  const RelativePositionOptions options;
  constexpr std::int64_t kLong = 300;
  for (const bool is_causal : {false, true}) {
    const auto buckets = buckets_of_distances(options, kLong, is_causal, at::kCPU);
    const auto last = buckets[kLong - 1], first = buckets[0];
    int edges = 0;
    for (std::int64_t i = 0; i < kLong; ++i) {
      // In float32 a distance at the edge of two buckets may be in either.
      const auto back = bucket_of(i - (kLong - 1), options, is_causal);
      const auto ahead = bucket_of(i, options, is_causal);
      edges += last[i].item<std::int64_t>() != back;
      edges += first[i].item<std::int64_t>() != ahead;
      EXPECT_NEAR(last[i].item<double>(), static_cast<double>(back), 1);
      EXPECT_NEAR(first[i].item<double>(), static_cast<double>(ahead), 1);
    }
    EXPECT_LE(edges, 2);
  }
}

/// A table of 16 bits that a long sequence reads: its gradients grow beyond 256.
TEST(RelativePositions, AddUpGradientsInFloat32) {
  d2d::SimulatedJob job(1);
  on_group(job, 1, [](int) {
    RelativePositions table(RelativePositionOptions{.num_buckets = 4, .max_distance = 3}, 2, true,
                            0.1);
    table->to(at::kBFloat16);
    const auto biases = table->forward(64, 2);
    EXPECT_EQ(biases.scalar_type(), at::kBFloat16);
    backward(biases, at::ones_like(biases));
    const double in_one = table->weight.grad().to(at::kDouble).sum().item<double>();
    EXPECT_NEAR(in_one, 2 * 64 * 64, 2 * 64 * 64 * 0.005);
  });
}

TEST(Alibi, FallsByTheSlopesOfThePaper) {
  for (const std::int64_t heads : {1, 2, 3, 6, 8, 12}) {
    const auto expected = slopes_of(heads, 8);
    const auto biases = alibi_biases(0, heads, heads, 8, 3, at::zeros({1}, at::kDouble));
    for (std::int64_t head = 0; head < heads; ++head) {
      EXPECT_DOUBLE_EQ(biases[0][head][2][0].item<double>(),
                       -2 * expected[static_cast<std::size_t>(head)]);
    }
  }
}

/// A residual that float32 holds and 16 bits do not.
TEST(DistributedTransformerLayer, AddsResidualsInFloat32IfWanted) {
  for (const auto* layout : kLayouts) {
    for (const auto* norm : {"layer", "rms"}) {
      for (const bool before : {false, true}) {
        d2d::SimulatedJob job(2);
        on_group(job, 2, [&](int rank) {
          torch::manual_seed(3);
          auto attention = attention_options();
          auto output = output_options();
          attention.norm = output.norm = norm;
          attention.pre_layernorm = output.pre_layernorm = before;
          attention.post_layernorm = output.post_layernorm = !before;
          attention.optimize = output.optimize = layout;
          const auto x = at::sin(at::arange(kLength * kHidden, at::kFloat) + rank)
                             .view({1, kLength, kHidden})
                             .to(at::kBFloat16);
          const auto result = [&](bool fp32) {
            torch::manual_seed(3);
            attention.fp32_residual_addition = output.fp32_residual_addition = fp32;
            nn::DistributedTransformer stack(attention, output, 2);
            stack->to(at::kBFloat16);
            return stack(TransformerState{.hidden = x}).hidden;
          };
          const auto narrow = result(false), wide = result(true);
          EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
          EXPECT_EQ(wide.scalar_type(), at::kFloat);
          const auto scale = wide.abs().max().item<double>();
          EXPECT_LE((wide - narrow).abs().max().item<double>(), 0.05 * scale);
          EXPECT_GT((wide - wide.to(at::kBFloat16)).abs().max().item<double>(), 1e-5);
        });
      }
    }
  }
}

/// Steps of bfloat16 numbers are 4 from 512 on: what a block adds is lost there.
TEST(DistributedTransformerLayer, KeepsWhatABlockAddsToLargeNumbers) {
  for (const auto* layout : kLayouts) {
    d2d::SimulatedJob job(2);
    on_group(job, 2, [&](int) {
      auto output = output_options();
      output.pre_layernorm = true;
      output.post_layernorm = false;
      output.optimize = layout;
      const auto x = (at::sin(at::arange(kLength * kHidden, at::kFloat)) * 256 + 768)
                         .view({1, kLength, kHidden})
                         .to(at::kBFloat16);
      const auto added = [&](bool fp32) {
        torch::manual_seed(3);
        output.fp32_residual_addition = fp32;
        nn::DistributedTransformerOutputLayer layer(output);
        layer->to(at::kBFloat16);
        return (layer(x).to(at::kDouble) - x.to(at::kDouble)).abs();
      };
      EXPECT_EQ(added(false).max().item<double>(), 0);
      EXPECT_GT(added(true).max().item<double>(), 1e-3);
    });
  }
}

TEST(DistributedAttentionLayer, RefusesPositionsThatDoNotFit) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    const auto refused = [](AttentionLayerOptions options) {
      return refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); });
    };
    auto options = options_of({Positions::kRotary, 4, 4, true}, "speed");
    options.alibi_bias_max = 8;
    EXPECT_THAT(refused(options), HasSubstr("keep one"));
    options = options_of({Positions::kRelative, 4, 4, true}, "speed");
    options.cross_attention = true;
    EXPECT_THAT(refused(options), HasSubstr("with cross_attention, whose keys have positions of"));
    options = options_of({Positions::kRotary, 4, 4, true}, "speed");
    options.attention_head_size = 6;
    EXPECT_THAT(refused(options), HasSubstr("rotary turns 4 elements of heads of "
                                            "attention_head_size 6"));
    options = options_of({Positions::kRelative, 4, 4, true}, "speed");
    options.relative_positions->num_buckets = 3;
    EXPECT_THAT(refused(options), HasSubstr("num_buckets is 3; must be even, and at least 4"));
    options.relative_positions = {.num_buckets = 32, .max_distance = 16};
    EXPECT_THAT(refused(options), HasSubstr("must be more than the 16 distances"));
    options = options_of({Positions::kNone, 4, 4, true}, "speed");
    options.norm = "batch";
    EXPECT_THAT(refused(options), HasSubstr("norm is \"batch\"; expected \"layer\" or \"rms\""));
    nn::DistributedAttentionLayer layer(options_of({Positions::kNone, 4, 4, true}, "speed"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer->forward(at::zeros({1, 2, kHidden}), {}, {}, at::arange(2));
                }),
                HasSubstr("positions without rotary"));
    EXPECT_THAT(refusal<UsageError>([&] { layer->position_bias(3); }),
                HasSubstr("position_bias without relative_positions"));
  });
}

}  // namespace transformer_positions_test
}  // namespace smp::tp
