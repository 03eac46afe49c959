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

void expect_as_plain_attention(int size, const AttentionLayerOptions& options, bool mask,
                               std::int64_t batch = kBatch) {
  const auto sequence = options.cross_attention ? kQueries + kKeys : kQueries;
  expect_as_plain(
      [&] { return std::make_shared<BoundImpl<PlainAttention>>(options, mask); },
      [&] { return std::make_shared<BoundImpl<nn::DistributedAttentionLayer>>(options, mask); },
      numbers(size, {batch, sequence, kHidden}), 1e-12, at::kDouble,
      seen_in_parts(options.optimize));
}

AttentionLayerOptions options_of(int bits, const char* layout) {
  auto options = attention_options();
  options.cross_attention = bits & 1;
  options.pre_layernorm = bits & 2;
  options.post_layernorm = bits & 4 || !options.pre_layernorm;
  if (bits & 16 && !options.cross_attention) options.causal_mask_size = 16;
  options.use_normal_initialization = bits & 16;
  options.optimize = layout;
  return options;
}

TEST(DistributedAttentionLayer, EqualsPlainAttention) {
  int cases = 0;
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      for (int bits = 0; bits < 32; ++bits) {
        SCOPED_TRACE(testing::Message() << layout << ", case " << bits);
        expect_as_plain_attention(size, options_of(bits, layout), bits & 8);
        ++cases;
      }
    }
  }
  EXPECT_EQ(cases, 288);
}

TEST(DistributedAttentionLayer, GathersMasksOfSingleSamples) {
  for (const auto* layout : kLayouts) {
    for (const int bits : {6, 7}) {
      expect_as_plain_attention(2, options_of(bits, layout), /*mask=*/true, /*batch=*/1);
    }
  }
}

/// A mask of all samples of a rank, and another one on each rank.
template <class Attention>
struct MaskOfBatchImpl : torch::nn::Module {
  explicit MaskOfBatchImpl(const AttentionLayerOptions& options)
      : layer(register_module("layer", Attention(options))) {}
  at::Tensor forward(const at::Tensor& x) {
    const auto mask = x.detach()[0].select(-1, 0).view({1, 1, 1, x.size(1)});
    return layer->forward(x, mask, at::Tensor());
  }
  Attention layer;
};

TEST(DistributedAttentionLayer, GathersMasksThatSamplesOfARankShare) {
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      const auto options = options_of(2, layout);
      expect_as_plain(
          [&] { return std::make_shared<MaskOfBatchImpl<PlainAttention>>(options); },
          [&] { return std::make_shared<MaskOfBatchImpl<nn::DistributedAttentionLayer>>(options); },
          numbers(size, {kBatch, kQueries, kHidden}), 1e-12, at::kDouble, seen_in_parts(layout));
    }
  }
}

/// A mask that is learnt, of the positions of all samples.
template <class Attention>
struct LearntMaskImpl : torch::nn::Module {
  explicit LearntMaskImpl(const AttentionLayerOptions& options)
      : mask(register_parameter("mask", numbers(1, {1, 1, 1, kQueries})[0])),
        layer(register_module("layer", Attention(options))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x, mask, at::Tensor()); }
  at::Tensor mask;
  Attention layer;
};

TEST(DistributedAttentionLayer, LearnsMasksThatAllSamplesShare) {
  for (const auto* layout : kLayouts) {
    for (const auto& [size, heads] : std::vector<std::pair<int, int>>{{2, 4}, {4, 4}, {4, 3}}) {
      auto options = options_of(2, layout);
      options.num_attention_heads = heads;
      auto summed = seen_in_parts(layout);
      summed.push_back("mask");
      expect_as_plain(
          [&] { return std::make_shared<LearntMaskImpl<PlainAttention>>(options); },
          [&] { return std::make_shared<LearntMaskImpl<nn::DistributedAttentionLayer>>(options); },
          numbers(size, {kBatch, kQueries, kHidden}), 1e-12, at::kDouble, summed);
    }
  }
}

/// Such as ALiBi's biases: a rank that has some of the heads would add those of all to them.
TEST(DistributedAttentionLayer, RefusesMasksOfSingleHeads) {
  d2d::SimulatedJob job(2);
  on_group(job, 2, [](int) {
    const auto options = options_of(0, "speed");
    nn::DistributedAttentionLayer layer(options);
    layer->to(at::kDouble);
    const auto x = at::randn({kBatch, kQueries, kHidden}, at::kDouble);
    const auto slopes = at::zeros({1, options.num_attention_heads, 1, kQueries}, at::kDouble);
    EXPECT_THAT(refusal<UsageError>([&] { layer->forward(x, slopes, at::Tensor()); }),
                HasSubstr("one for all heads"));
  });
}

struct Heads {
  std::int64_t all, keys;
};

TEST(DistributedAttentionLayer, DealsAnyNumberOfHeads) {
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 3, 4}) {
      if (std::string(layout) == "memory" && kHidden % size != 0) continue;
      for (const auto& heads : std::vector<Heads>{
               {4, 2}, {4, 1}, {3, 3}, {5, 5}, {1, 1}, {6, 3}, {6, 2}, {9, 3}, {8, 4}, {3, 1}}) {
        for (const int bits : {2, 5, 24}) {
          SCOPED_TRACE(testing::Message() << layout << ", " << size << " ranks, " << heads.all
                                          << " heads, " << heads.keys << " of keys, " << bits);
          auto options = options_of(bits, layout);
          options.num_attention_heads = heads.all;
          options.num_key_value_heads = heads.keys;
          expect_as_plain_attention(size, options, bits & 8);
        }
      }
    }
  }
}

TEST(DistributedTransformerOutputLayer, EqualsItsProducts) {
  for (const auto* activation :
       {"gelu", "gelu_tanh", "relu", "swiglu", "geglu", "geglu_tanh", "reglu"}) {
    for (const auto* layout : kLayouts) {
      for (const int size : {1, 2, 4}) {
        for (int bits = 0; bits < 8; ++bits) {
          auto options = output_options();
          options.pre_layernorm = bits & 1;
          options.post_layernorm = bits & 2 || !options.pre_layernorm;
          options.activation = activation;
          options.use_normal_initialization = bits & 4;
          options.optimize = layout;
          SCOPED_TRACE(testing::Message() << activation << ", " << layout << ", case " << bits);
          expect_as_plain([&] { return PlainOutput(options); },
                          [&] { return nn::DistributedTransformerOutputLayer(options); },
                          numbers(size, {kBatch, kQueries, kHidden}), 1e-12, at::kDouble,
                          seen_in_parts(layout));
        }
      }
    }
  }
}

AttentionLayerOptions layer_options(bool cross, const char* layout) {
  auto options = attention_options();
  options.cross_attention = cross;
  options.causal_mask_size = 8;
  options.optimize = layout;
  return options;
}

TransformerOutputLayerOptions output_options(const char* layout) {
  auto options = tp::output_options();
  options.optimize = layout;
  return options;
}

/// Two layers in a row, with masks of their own for both sequences.
template <class Layer>
struct StackImpl : torch::nn::Module {
  explicit StackImpl(const AttentionLayerOptions& options)
      : cross(options.cross_attention),
        first(register_module("layer0", Layer(options, output_options(options.optimize.c_str())))),
        second(
            register_module("layer1", Layer(options, output_options(options.optimize.c_str())))) {}
  at::Tensor forward(const at::Tensor& x) {
    const Cut cut(x, cross, true), own(x, false, true);
    TransformerState state{cut.hidden, {}, cut.cross_states, {}};
    (cross ? state.cross_mask : state.mask) = cut.mask;
    if (cross) state.mask = own.mask.narrow(3, 0, kQueries);
    return second->forward(first->forward(state)).hidden;
  }
  bool cross;
  Layer first, second;
};

/// The same layers in one module.
struct TransformerStackImpl : torch::nn::Module {
  explicit TransformerStackImpl(const AttentionLayerOptions& options)
      : cross(options.cross_attention),
        inner(options, output_options(options.optimize.c_str()), 2) {
    for (int i = 0; i < 2; ++i) {
      register_module("layer" + std::to_string(i), inner->layers[static_cast<std::size_t>(i)]);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const Cut cut(x, cross, true), own(x, false, true);
    TransformerState state{cut.hidden, {}, cut.cross_states, {}};
    (cross ? state.cross_mask : state.mask) = cut.mask;
    if (cross) state.mask = own.mask.narrow(3, 0, kQueries);
    return inner->forward(state).hidden;
  }
  bool cross;
  nn::DistributedTransformer inner;
};

TEST(DistributedTransformerLayer, EqualsPlainLayersInARow) {
  for (const auto* layout : kLayouts) {
    for (const int size : {1, 2, 4}) {
      for (const bool cross : {false, true}) {
        SCOPED_TRACE(testing::Message() << layout << (cross ? ", cross-attention" : ""));
        const auto options = layer_options(cross, layout);
        const auto plain = [&] { return std::make_shared<StackImpl<PlainLayer>>(options); };
        const auto samples = numbers(size, {kBatch, cross ? kQueries + kKeys : kQueries, kHidden});
        expect_as_plain(
            plain,
            [&] { return std::make_shared<StackImpl<nn::DistributedTransformerLayer>>(options); },
            samples, 1e-11, at::kDouble, seen_in_parts(layout));
        expect_as_plain(
            plain, [&] { return std::make_shared<TransformerStackImpl>(options); }, samples, 1e-11,
            at::kDouble, seen_in_parts(layout));
      }
    }
  }
}

/// What rank 0 sends.
struct Sent {
  std::uint64_t forward_bytes = 0, backward_bytes = 0;
  std::uint64_t forward_frames = 0, backward_frames = 0;
};

constexpr int kSenders = 4;
constexpr std::int64_t kLong = 40;  // of the sequence, so that moments are no small tensors

template <class Forward>
Sent sent_by(const Forward& run, Batches batches = Batches::kOwn) {
  d2d::SimulatedJob job(kSenders);
  Sent sent;
  on_group(
      job, kSenders,
      [&](int rank) {
        const auto& counters = job.channel(0).counters();
        const auto y = run(rank);
        if (rank == 0) {
          sent.forward_bytes = counters.tensor_bytes_sent;
          sent.forward_frames = counters.frames_sent;
        }
        backward(y, at::ones_like(y));
        if (rank == 0) {
          sent.backward_bytes = counters.tensor_bytes_sent - sent.forward_bytes;
          sent.backward_frames = counters.frames_sent - sent.forward_frames;
        }
      },
      batches);
  return sent;
}

at::Tensor long_sample(int rank, std::int64_t batch, std::int64_t width) {
  return numbers(kSenders, {batch, kLong, width})[static_cast<std::size_t>(rank)].requires_grad_();
}

TEST(DistributedTransformerLayer, SendsWhatTheFormulaOfSpeedSays) {
  const auto sent = sent_by([](int rank) {
    nn::DistributedTransformerLayer layer(layer_options(false, "speed"), output_options("speed"));
    layer->to(at::kDouble);
    return layer(TransformerState{long_sample(rank, kBatch, kHidden).narrow(1, 0, 8), {}, {}, {}})
        .hidden;
  });
  const std::uint64_t block = 2 * (kSenders - 1) * kBatch * 8 * kHidden * sizeof(double);
  EXPECT_EQ(sent.forward_bytes, 2 * block) << "two blocks";
  EXPECT_EQ(sent.backward_bytes, sent.forward_bytes);
  EXPECT_EQ(sent.forward_frames, 4u * (kSenders - 1)) << "two collectives a block";
  EXPECT_EQ(sent.backward_frames, sent.forward_frames);
}

/// App. F.2: four reduce-scatters and two all-reduces of two numbers a row; backward, four
/// all-gathers, and the all-reduces again.
TEST(DistributedTransformerLayer, SendsWhatTheFormulaOfMemorySays) {
  auto attention = attention_options();
  attention.optimize = "memory";
  const auto rows = static_cast<std::uint64_t>(kBatch * kLong);
  const auto others = static_cast<std::uint64_t>(kSenders - 1);
  const auto channels = attention.num_attention_heads * attention.attention_head_size;
  const auto a_row = static_cast<std::uint64_t>(3 * channels + 2 * kHidden + 12);
  const auto sent = sent_by([&](int rank) {
    nn::DistributedTransformerLayer layer(attention, output_options("memory"));
    layer->to(at::kDouble);
    TransformerState state;
    state.hidden = long_sample(rank, kSenders * kBatch, kHidden / kSenders);
    state.sliced = true;
    const auto result = layer(state);
    EXPECT_TRUE(result.sliced);
    return result.hidden;
  });
  EXPECT_EQ(sent.forward_bytes, others * rows * (a_row + 2 * 4) * sizeof(double));
  EXPECT_EQ(sent.backward_bytes, sent.forward_bytes);
  EXPECT_EQ(sent.forward_frames, (4 + 2 * 2) * others) << "an all-reduce has two halves";
  EXPECT_EQ(sent.backward_frames, sent.forward_frames);
}

/// Samples are exchanged around all layers, and not around each.
TEST(DistributedTransformer, AddsTwoExchangesOfSamples) {
  for (const std::uint64_t layers : {1, 3}) {
    auto attention = attention_options();
    attention.optimize = "memory";
    const auto sent = sent_by([&](int rank) {
      nn::DistributedTransformer stack(attention, output_options("memory"), layers);
      stack->to(at::kDouble);
      return stack(TransformerState{long_sample(rank, kSenders, kHidden), {}, {}, {}}).hidden;
    });
    EXPECT_EQ(sent.forward_frames, (8 * layers + 2) * (kSenders - 1));
    EXPECT_EQ(sent.backward_frames, sent.forward_frames);
  }
}

/// App. F.1: two all-reduces of the hidden state, and two in backward.
TEST(DistributedTransformerLayer, SumsAPrescaledBatchTwiceWithSpeed) {
  auto attention = attention_options();
  attention.optimize = "speed";
  const auto sent = sent_by(
      [&](int) {
        nn::DistributedTransformerLayer layer(attention, output_options("speed"));
        layer->to(at::kDouble);
        return layer(TransformerState{long_sample(0, kSenders, kHidden), {}, {}, {}}).hidden;
      },
      Batches::kPrescaled);
  const auto others = static_cast<std::uint64_t>(kSenders - 1);
  const std::uint64_t hidden = kSenders * kLong * kHidden * sizeof(double);
  EXPECT_EQ(sent.forward_bytes, 2 * (2 * others * hidden / kSenders));
  EXPECT_EQ(sent.backward_bytes, sent.forward_bytes);
  EXPECT_EQ(sent.forward_frames, 2 * 2 * others) << "an all-reduce has two halves";
  EXPECT_EQ(sent.backward_frames, sent.forward_frames);
}

/// Korthikanti et al. 2022: an all-gather and a reduce-scatter a block; what products read is
/// gathered again in backward, and at the ends the state enters and leaves.
TEST(DistributedTransformer, SendsWhatTheFormulaOfSequenceSays) {
  for (const std::uint64_t layers : {1, 3}) {
    auto attention = attention_options();
    attention.optimize = "sequence";
    const auto sent = sent_by(
        [&](int) {
          nn::DistributedTransformer stack(attention, output_options("sequence"),
                                           static_cast<std::int64_t>(layers));
          stack->to(at::kDouble);
          return stack(TransformerState{long_sample(0, kSenders, kHidden), {}, {}, {}}).hidden + 0;
        },
        Batches::kPrescaled);
    const auto others = static_cast<std::uint64_t>(kSenders - 1);
    const std::uint64_t once = others * kLong * kHidden * sizeof(double);  // of kSenders rows
    EXPECT_EQ(sent.forward_bytes, (4 * layers + 1) * once);
    EXPECT_EQ(sent.backward_bytes, (6 * layers + 1) * once);
  }
}

/// Layers send what they send with own samples; around them is an all-gather each way.
TEST(DistributedTransformer, JoinsAPrescaledBatchOnceWithMemory) {
  for (const std::uint64_t layers : {1, 3}) {
    auto attention = attention_options();
    attention.optimize = "memory";
    const auto sent_with = [&](Batches batches) {
      return sent_by(
          [&](int rank) {
            nn::DistributedTransformer stack(attention, output_options("memory"),
                                             static_cast<std::int64_t>(layers));
            stack->to(at::kDouble);
            const bool own = batches == Batches::kOwn;
            const auto x =
                long_sample(own ? rank : 0, own ? kSenders : kSenders * kSenders, kHidden);
            return stack(TransformerState{x, {}, {}, {}}).hidden;
          },
          batches);
    };
    const auto own = sent_with(Batches::kOwn), one = sent_with(Batches::kPrescaled);
    const auto others = static_cast<std::uint64_t>(kSenders - 1);
    EXPECT_EQ(one.forward_frames, (8 * layers + 1) * others);
    EXPECT_EQ(one.backward_frames, one.forward_frames);
    // An all-gather of slices instead of two all-to-alls of a T-th of the samples.
    const std::uint64_t slices = kSenders * kLong * kHidden * sizeof(double);
    EXPECT_EQ(one.forward_bytes + 2 * others * slices / kSenders,
              own.forward_bytes + others * slices);
    EXPECT_EQ(one.backward_bytes, one.forward_bytes);
  }
}

/// Cross-attention has a reduce-scatter more: of the other sequence's keys and values.
TEST(DistributedAttentionLayer, ScattersTheOtherSequenceInOne) {
  auto options = attention_options();
  options.cross_attention = true;
  options.optimize = "memory";
  const auto sent = sent_by([&](int rank) {
    nn::DistributedAttentionLayer layer(options);
    layer->to(at::kDouble);
    const auto slices = long_sample(rank, kSenders * kBatch, kHidden / kSenders);
    return layer->forward_slices(slices, {}, slices);
  });
  EXPECT_EQ(sent.forward_frames, (3 + 2) * (kSenders - 1u));
  EXPECT_EQ(sent.backward_frames, sent.forward_frames);
}

TEST(DistributedTransformerLayers, RefuseWhatDoesNotFit) {
  d2d::SimulatedJob job(4);
  on_group(job, 4, [](int) {
    auto options = attention_options();
    options.num_key_value_heads = 3;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                AllOf(HasSubstr("num_attention_heads 4 is no multiple of num_key_value_heads 3"),
                      HasSubstr("choose numbers")));
    options = attention_options();
    options.hidden_size = 6;
    options.optimize = "memory";
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                HasSubstr("with optimize \"memory\" hidden_size 6 cannot be divided by the 4"));
    options = attention_options();
    options.optimize = "quick";
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                HasSubstr("optimize is \"quick\"; expected \"speed\", \"memory\" or \"sequence\""));
    EXPECT_THAT(refusal<UsageError>([&] {
                  nn::DistributedTransformerLayer layer(layer_options(false, "speed"),
                                                        output_options("memory"));
                }),
                HasSubstr("\"speed\" in attention and \"memory\" in output"));
    nn::DistributedTransformerLayer quick(layer_options(false, "speed"), output_options("speed"));
    EXPECT_THAT(refusal<UsageError>([&] {
                  quick(TransformerState{at::ones({8, 3, 2}), {}, {}, {}, true});
                }),
                HasSubstr("a sliced state in a layer of layout \"speed\""));
    EXPECT_THAT(refusal<UsageError>([&] {
                  quick->output->forward_slices(at::ones({8, 3, 2}));
                }),
                HasSubstr("forward_slices with layout \"speed\""));
    options = attention_options();
    options.post_layernorm = false;
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedAttentionLayer layer(options); }),
                HasSubstr("neither pre_layernorm nor post_layernorm"));
    auto output = tp::output_options();
    output.activation = "tanh";
    EXPECT_THAT(refusal<UsageError>([&] { nn::DistributedTransformerOutputLayer layer(output); }),
                HasSubstr("activation \"tanh\"; expected one of gelu, gelu_tanh, relu, swiglu, "
                          "geglu, geglu_tanh, reglu"));
    output = tp::output_options();
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
