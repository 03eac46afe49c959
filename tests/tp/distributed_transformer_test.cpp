// Transformer layers equal plain LibTorch: self- and cross-attention, causal or not, masks, norms
// before and after, activations; how they are refused.
#include "smp/tp/distributed_transformer.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/error.h"
#include "support/refusal.h"
#include "tp/layer_comparison.h"
#include "tp/plain_transformer.h"

namespace smp::tp {
namespace distributed_transformer_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kBatch = 2, kQueries = 3, kKeys = 4;

/// What goes into a layer, cut out of one tensor [B, S + S', H], so that gradients of both are
/// seen.
struct Cut {
  explicit Cut(const at::Tensor& x, bool cross, bool with_mask) {
    hidden = cross ? x.narrow(1, 0, kQueries) : x;
    if (cross) cross_states = x.narrow(1, kQueries, kKeys);
    const auto seen = (cross ? cross_states : hidden).detach().select(2, 0).unsqueeze(1);
    if (with_mask) mask = (seen > 0.6).to(x.scalar_type()).unsqueeze(1) * -1e4;
  }
  at::Tensor hidden, mask, cross_states;
};

/// A layer whose arguments are cut out of one.
template <class Attention>
struct BoundImpl : torch::nn::Module {
  BoundImpl(const AttentionLayerOptions& options, bool mask)
      : cross(options.cross_attention),
        with_mask(mask),
        layer(register_module("layer", Attention(options))) {}
  at::Tensor forward(const at::Tensor& x) {
    const Cut cut(x, cross, with_mask);
    return layer->forward(cut.hidden, cut.mask, cut.cross_states);
  }
  bool cross, with_mask;
  Attention layer;
};

TEST(DistributedAttentionLayer, EqualsPlainAttention) {
  int cases = 0;
  for (const int size : {1, 2, 4}) {
    for (int bits = 0; bits < 32; ++bits) {
      auto options = attention_options();
      options.cross_attention = bits & 1;
      options.pre_layernorm = bits & 2;
      options.post_layernorm = bits & 4 || !options.pre_layernorm;
      const bool mask = bits & 8;
      if (bits & 16 && !options.cross_attention) options.causal_mask_size = 16;
      options.use_normal_initialization = bits & 16;
      SCOPED_TRACE(testing::Message() << "case " << bits);
      const auto sequence = options.cross_attention ? kQueries + kKeys : kQueries;
      expect_as_plain(
          [&] { return std::make_shared<BoundImpl<PlainAttention>>(options, mask); },
          [&] { return std::make_shared<BoundImpl<nn::DistributedAttentionLayer>>(options, mask); },
          numbers(size, {kBatch, sequence, kHidden}), 1e-11);
      ++cases;
    }
  }
  EXPECT_EQ(cases, 96);
}

TEST(DistributedTransformerOutputLayer, EqualsTwoProducts) {
  for (const int size : {1, 2, 4}) {
    for (int bits = 0; bits < 24; ++bits) {
      auto options = output_options();
      options.pre_layernorm = bits & 1;
      options.post_layernorm = bits & 2 || !options.pre_layernorm;
      options.activation = bits & 16 ? "gelu_tanh" : bits & 4 ? "relu" : "gelu";
      options.use_normal_initialization = bits & 8;
      SCOPED_TRACE(testing::Message() << "case " << bits);
      expect_as_plain([&] { return PlainOutput(options); },
                      [&] { return nn::DistributedTransformerOutputLayer(options); },
                      numbers(size, {kBatch, kQueries, kHidden}), 1e-11);
    }
  }
}

/// Two layers in a row.
template <class Layer>
struct StackImpl : torch::nn::Module {
  explicit StackImpl(const AttentionLayerOptions& options)
      : cross(options.cross_attention),
        first(register_module("first", Layer(options, output_options()))),
        second(register_module("second", Layer(options, output_options()))) {}
  at::Tensor forward(const at::Tensor& x) {
    const Cut cut(x, cross, false);
    return second->forward(first->forward(TransformerState{cut.hidden, {}, cut.cross_states, {}}))
        .hidden;
  }
  bool cross;
  Layer first, second;
};

TEST(DistributedTransformerLayer, EqualsPlainLayersInARow) {
  for (const int size : {2, 4}) {
    for (const bool cross : {false, true}) {
      auto options = attention_options();
      options.cross_attention = cross;
      options.causal_mask_size = 8;
      const auto sequence = cross ? kQueries + kKeys : kQueries;
      expect_as_plain(
          [&] { return std::make_shared<StackImpl<PlainLayer>>(options); },
          [&] { return std::make_shared<StackImpl<nn::DistributedTransformerLayer>>(options); },
          numbers(size, {kBatch, sequence, kHidden}), 1e-10);
    }
  }
}

TEST(DistributedTransformerLayer, SendsWhatTheFormulaSays) {
  const int size = 4;
  d2d::SimulatedJob job(size);
  std::uint64_t forward = 0, both = 0;
  const auto bytes = [&] { return job.channel(0).counters().tensor_bytes_sent; };
  on_group(job, size, [&](int rank) {
    nn::DistributedTransformerLayer layer(attention_options(), output_options());
    layer->to(at::kDouble);
    auto x = numbers(size, {kBatch, kQueries, kHidden})[static_cast<std::size_t>(rank)];
    x.requires_grad_();
    const auto y = layer(TransformerState{x, {}, {}, {}}).hidden;
    if (rank == 0) forward = bytes();
    backward(y, at::ones_like(y));
    if (rank == 0) both = bytes();
  });
  const auto block = 2 * (size - 1) * kBatch * kQueries * kHidden * 8;
  EXPECT_EQ(forward, static_cast<std::uint64_t>(2 * block)) << "two blocks";
  EXPECT_EQ(both, 2 * forward);
}

TEST(DistributedTransformerLayers, RefuseWhatDoesNotFit) {
  d2d::SimulatedJob job(4);
  on_group(job, 4, [](int) {
    auto options = attention_options();
    options.num_attention_heads = 6;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                AllOf(HasSubstr("num_attention_heads 6 cannot be divided by the 4"),
                      HasSubstr("choose a number")));
    options = attention_options();
    options.post_layernorm = false;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                HasSubstr("neither pre_layernorm nor post_layernorm"));
    auto output = output_options();
    output.activation = "tanh";
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedTransformerOutputLayer layer(output); }),
                HasSubstr("activation \"tanh\"; expected gelu, gelu_tanh or relu"));
    output = output_options();
    output.intermediate_size = 10;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedTransformerOutputLayer layer(output); }),
                HasSubstr("intermediate_size 10"));
    nn::DistributedAttentionLayer layer(attention_options());
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer(at::ones({2, 3, 7}), at::Tensor(), at::Tensor());
                }),
                HasSubstr("hidden is [2, 3, 7], expected [batch, sequence, 8]"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  layer(at::ones({2, 3, 8}), at::Tensor(), at::ones({2, 3, 8}));
                }),
                HasSubstr("cross_states without cross_attention"));
    options = attention_options();
    options.causal_mask_size = 2;
    nn::DistributedAttentionLayer causal(options);
    EXPECT_THAT(refusal<UsageError>([&] {
                  causal(at::ones({2, 3, 8}), at::Tensor(), at::Tensor());
                }),
                HasSubstr("a sequence of 3 positions, but causal_mask_size is 2"));
  });
}

}  // namespace distributed_transformer_test
}  // namespace smp::tp
