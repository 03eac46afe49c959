// Layers that see a text in pieces compute what they compute for the whole.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "smp/nn/decoder_layer.h"
#include "support/refusal.h"

namespace smp::nn {
namespace key_value_cache_test {

using testing::HasSubstr;
using torch::Tensor;

DecoderLayer layer_of(std::optional<std::int64_t> window, bool qk_norm) {
  auto attention = GroupedQueryAttentionOptions(8, 4).kv_heads(2).window(window);
  if (qk_norm) attention.qk_norm_eps(1e-6);
  DecoderLayer layer(DecoderLayerOptions(attention, GatedMlpOptions(8, 12), RMSNormOptions(8)));
  layer->to(torch::kDouble);
  return layer;
}

/// The results of `pieces`, one call after the other, with tokens counted from 0.
Tensor in_pieces(DecoderLayer& layer, const Tensor& hidden, const std::vector<std::int64_t>& pieces,
                 const Tensor& present = {}) {
  const torch::NoGradGuard no_grad;
  CachedTokens place{.cache = 1, .most = hidden.size(1)};
  std::vector<Tensor> results;
  for (const auto count : pieces) {
    place.last = place.begin + count == hidden.size(1);
    // Some callers know of later tokens already.
    if (present.defined()) {
      place.present = pieces.size() == 2 ? present : present.narrow(1, 0, place.begin + count);
    }
    results.push_back(layer->decode(hidden.narrow(1, place.begin, count), place));
    place.begin += count;
  }
  return torch::cat(results, 1);
}

const std::vector<std::vector<std::int64_t>> kPieces{
    {9}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {4, 1, 1, 3}, {1, 8}, {8, 1}};

TEST(KeyValueCache, PiecesAreEqualToTheWhole) {
  torch::manual_seed(1);
  const auto hidden = torch::randn({3, 9, 8}, torch::kDouble);
  for (const std::optional<std::int64_t> window : {std::optional<std::int64_t>(), {3}, {1}, {9}}) {
    for (const bool qk_norm : {false, true}) {
      auto layer = layer_of(window, qk_norm);
      const auto whole = layer->forward(hidden);
      for (const auto& pieces : kPieces) {
        EXPECT_LE((in_pieces(layer, hidden, pieces) - whole).abs().max().item<double>(), 1e-12)
            << testing::PrintToString(pieces) << ", window " << window.value_or(0);
        EXPECT_EQ(layer->self_attn->cache().bytes(), 0);
      }
    }
  }
}

/// Rows that begin later are as if they had begun at 0.
TEST(KeyValueCache, PaddingOnTheLeftChangesNothing) {
  torch::manual_seed(2);
  const auto hidden = torch::randn({2, 9, 8}, torch::kDouble);
  auto present = torch::ones({2, 9}, torch::kLong);
  present.index_put_({1, torch::indexing::Slice(0, 3)}, 0);
  for (const std::optional<std::int64_t> window : {std::optional<std::int64_t>(), {3}}) {
    auto layer = layer_of(window, false);
    const auto first = layer->forward(hidden.narrow(0, 0, 1));
    const auto second = layer->forward(hidden.narrow(0, 1, 1).narrow(1, 3, 6));
    for (const auto& pieces : kPieces) {
      const auto ours = in_pieces(layer, hidden, pieces, present);
      EXPECT_LE((ours[0] - first[0]).abs().max().item<double>(), 1e-12);
      EXPECT_LE((ours[1].narrow(0, 3, 6) - second[0]).abs().max().item<double>(), 1e-12);
    }
  }
}

TEST(KeyValueCache, KeepsRowsApartAndForgetsOtherCaches) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  auto layer = layer_of({}, false);
  const auto& cache = layer->self_attn->cache();
  const auto hidden = torch::randn({4, 5, 8}, torch::kDouble);
  const auto whole = layer->forward(hidden);
  for (const std::int64_t begin : {0, 3}) {
    for (const std::int64_t row : {2, 0}) {
      const auto part = hidden.narrow(0, row, 2).narrow(1, begin, begin == 0 ? 3 : 2);
      const auto ours = layer->decode(part, {.cache = 1, .row = row, .begin = begin, .most = 5});
      const auto expected = whole.narrow(0, row, 2).narrow(1, begin, part.size(1));
      EXPECT_LE((ours - expected).abs().max().item<double>(), 1e-12);
    }
  }
  EXPECT_EQ(cache.bytes(), 2 * 4 * 5 * 4 * 8);  // keys and values, rows, tokens, 2 heads of 2
  layer->decode(hidden.narrow(0, 0, 1), {.cache = 2, .most = 5});
  EXPECT_EQ(cache.bytes(), 2 * 1 * 5 * 4 * 8);
}

TEST(KeyValueCache, RefusesWhatDoesNotFollow) {
  auto layer = layer_of({}, false);
  const auto hidden = torch::randn({2, 3, 8}, torch::kDouble);
  EXPECT_THAT(refusal([&] { layer->decode(hidden, {}); }), HasSubstr("NoGradGuard"));
  const torch::NoGradGuard no_grad;
  const auto refused = [&](const Tensor& some, const CachedTokens& place) {
    return refusal([&] { layer->decode(some, place); });
  };
  EXPECT_THAT(refused(hidden, {.cache = 1, .begin = 1}), HasSubstr("0 tokens of 0 rows are kept"));
  layer->decode(hidden, {.cache = 1, .most = 4});
  EXPECT_THAT(refused(hidden, {.cache = 1, .begin = 2}), HasSubstr("3 tokens of 2 rows are kept"));
  EXPECT_THAT(refused(hidden, {.cache = 1, .begin = 3}), HasSubstr("CachedTokens::most"));
  EXPECT_THAT(refused(hidden[0].unsqueeze(0), {.cache = 1, .begin = 3}), HasSubstr("of 1 rows"));
  EXPECT_THAT(refused(hidden, {.cache = 2, .begin = 3}), HasSubstr("0 tokens of 0 rows"));
  EXPECT_THAT(refused(hidden, {.cache = 2, .present = torch::ones({2, 2})}),
              HasSubstr("expected [B, 3 or more]"));
}

}  // namespace key_value_cache_test
}  // namespace smp::nn
