// A block of Llama over the ranks of a group equals the whole one in both layouts: norms of both
// kinds, in float32 and in 16 bits too.
#include "smp/tp/distributed_decoder_layer.h"

#include <gmock/gmock.h>

#include <type_traits>
#include <utility>

#include "tp/layer_comparison.h"

namespace smp::tp {
namespace distributed_decoder_layer_test {

nn::DecoderLayerOptions options_of(bool unit_offset) {
  auto attention = nn::GroupedQueryAttentionOptions(8, 4).kv_heads(2).qk_norm_eps(1e-6);
  return {attention, nn::GatedMlpOptions(8, 10),
          nn::RMSNormOptions(8).unit_offset(unit_offset).eps(1e-5)};
}

void expect_as_plain_layer(int size, bool unit_offset, const char* layout, double tolerance,
                           at::ScalarType dtype) {
  SCOPED_TRACE(testing::Message() << size << " ranks, " << layout << ", " << dtype);
  auto samples = numbers(size, {2, 3, 8});
  for (auto& sample : samples) sample = sample.to(dtype);
  expect_as_plain([&] { return nn::DecoderLayer(options_of(unit_offset)); },
                  [&] { return nn::DistributedDecoderLayer(options_of(unit_offset), layout); },
                  samples, tolerance, dtype, {"k_proj", "v_proj", "q_norm", "k_norm"});
}

TEST(DistributedDecoderLayer, EqualsTheWholeBlock) {
  for (const int size : {1, 2, 4}) {
    for (const auto* layout : {"speed", "memory"}) {
      for (const bool unit_offset : {false, true}) {
        expect_as_plain_layer(size, unit_offset, layout, 1e-12, at::kDouble);
      }
      expect_as_plain_layer(size, false, layout, 2e-5, at::kFloat);
    }
  }
}

/// A prescaled batch that is cut along a sequence of any length.
TEST(DistributedDecoderLayer, EqualsTheWholeBlockAlongTheSequence) {
  for (const int size : {2, 4}) {
    for (const std::int64_t length : {1, 3, 4, 6}) {
      for (const double eps : {0.0, 1e-5}) {
        SCOPED_TRACE(testing::Message() << size << " ranks, " << length << " positions");
        auto options = options_of(false);
        options.norm().eps(eps);
        options.attention().bias(true).output_bias(true);
        expect_as_plain_with(
            Batches::kPrescaled, size, [&] { return nn::DecoderLayer(options); },
            [&] { return nn::DistributedDecoderLayer(options, "sequence"); },
            numbers(1, {2, length, 8}), 1e-12, at::kDouble,
            {"layernorm", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj.bias"});
      }
    }
  }
}

/// Layers in a row, as programs write them. @param skips  between them the state is used as well
template <class Layer>
struct RowImpl : torch::nn::Module {
  template <class... Arguments>
  RowImpl(int count, bool skips_over, const Arguments&... arguments) : skips(skips_over) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Layer(arguments...)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) {
      const auto before = std::exchange(x, layer->forward(x));
      if (skips) x = x + before.tanh();
    }
    return x;
  }
  const bool skips;
  std::vector<Layer> layers;
};

template <class Layer>
std::shared_ptr<RowImpl<Layer>> row_of(int count, bool skips, const nn::DecoderLayerOptions& of) {
  if constexpr (std::is_same_v<Layer, nn::DecoderLayer>) {
    return std::make_shared<RowImpl<Layer>>(count, skips, of);
  } else {
    return std::make_shared<RowImpl<Layer>>(count, skips, of, "sequence");
  }
}

/// What is between two of them stays cut, unless the program looks at it.
TEST(DistributedDecoderLayer, EqualsTheWholeBlocksInARowAlongTheSequence) {
  for (const auto& [size, length] : std::vector<std::pair<int, std::int64_t>>{{2, 5}, {4, 6}}) {
    for (const bool skips : {false, true}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, " << length << " positions" << skips);
      auto options = options_of(false);
      options.attention().bias(true).output_bias(true);
      expect_as_plain_with(
          Batches::kPrescaled, size, [&] { return row_of<nn::DecoderLayer>(3, skips, options); },
          [&] { return row_of<nn::DistributedDecoderLayer>(3, skips, options); },
          numbers(1, {2, length, 8}), 1e-12, at::kDouble,
          {"layernorm", "k_proj", "v_proj", "q_norm", "k_norm", "o_proj.bias"});
    }
  }
}

/// A row sends what two all-reduces of each layer do, and one all-gather to leave the last; so it
/// does backward, with one all-gather more for each of a layer's two blocks, whose input no rank
/// keeps.
TEST(DistributedDecoderLayer, SendsAlongTheSequenceWhatAllReducesDo) {
  constexpr std::int64_t kRows = 2, kLength = 8, kWidth = 8;
  for (const int size : {2, 4}) {
    const auto bytes_of = [&](const char* layout, int count) {
      std::pair<double, double> sent;
      d2d::SimulatedJob job(size, 4);
      on_group(
          job, size,
          [&](int rank) {
            auto& group = TensorParallel::current();
            RowImpl<nn::DistributedDecoderLayer> row(count, false, options_of(false), layout);
            group.set_traffic_listener([&](const Traffic& forward, const Traffic& backward) {
              if (rank == 0) sent.first += forward.bytes, sent.second += backward.bytes;
            });
            group.set_alone(true);
            row.forward(at::ones({kRows, kLength, kWidth}).requires_grad_()).sum();
            group.set_alone(false);
          },
          Batches::kPrescaled);
      return sent;
    };
    const double once = 4.0 * (size - 1) / size * kRows * kLength * kWidth;
    for (const int count : {1, 3}) {
      EXPECT_EQ(bytes_of("speed", count), std::pair(4 * count * once, 4 * count * once));
      EXPECT_EQ(bytes_of("sequence", count),
                std::pair((4 * count + 1) * once, (6 * count + 1) * once));
    }
  }
}

}  // namespace distributed_decoder_layer_test
}  // namespace smp::tp
