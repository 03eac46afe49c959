// The T5 sample against what is published about T5: names and shapes of the checkpoints, sizes of
// the models, the position buckets, and what an encoder-decoder may and may not see.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "t5/t5.h"

namespace t5 {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

void add_attention(const T5Config& c, const std::string& path, Shapes& shapes) {
  const int64_t inner = c.num_heads * c.d_kv;
  for (const char* name : {"q", "k", "v"}) shapes[path + name + ".weight"] = {inner, c.d_model};
  shapes[path + "o.weight"] = {c.d_model, inner};
}

void add_feed_forward(const T5Config& c, const std::string& path, Shapes& shapes) {
  const std::vector<const char*> widening =
      c.is_gated_act ? std::vector<const char*>{"wi_0", "wi_1"} : std::vector<const char*>{"wi"};
  for (const char* name : widening) shapes[path + name + ".weight"] = {c.d_ff, c.d_model};
  shapes[path + "wo.weight"] = {c.d_model, c.d_ff};
}

void add_stack(const T5Config& c, const std::string& stack, bool decoder, Shapes& shapes) {
  const int64_t num_blocks = decoder ? c.num_decoder_layers : c.num_layers;
  const int last = decoder ? 2 : 1;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const std::string layer = stack + ".block." + std::to_string(block) + ".layer.";
    add_attention(c, layer + "0.SelfAttention.", shapes);
    if (decoder) add_attention(c, layer + "1.EncDecAttention.", shapes);
    add_feed_forward(c, layer + std::to_string(last) + ".DenseReluDense.", shapes);
    for (int norm = 0; norm <= last; ++norm) {
      shapes[layer + std::to_string(norm) + ".layer_norm.weight"] = {c.d_model};
    }
  }
  shapes[stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = {
      c.relative_attention_num_buckets, c.num_heads};
  shapes[stack + ".final_layer_norm.weight"] = {c.d_model};
}

/// The tensors of a public T5 checkpoint, by the rule that their names follow.
Shapes published_shapes(const T5Config& c) {
  Shapes shapes{{"shared.weight", {c.vocab_size, c.d_model}}};
  add_stack(c, "encoder", false, shapes);
  add_stack(c, "decoder", true, shapes);
  if (!c.tie_word_embeddings) shapes["lm_head.weight"] = {c.vocab_size, c.d_model};
  return shapes;
}

int64_t published_size(const std::string& preset) {
  int64_t size = 0;
  for (const auto& [name, shape] : published_shapes(T5Config::preset(preset))) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    size += elements;
  }
  return size;
}

Shapes actual_shapes(const T5& model) {
  Shapes shapes;
  for (const auto& entry : model->named_parameters()) {
    shapes[entry.key()] = entry.value().sizes().vec();
  }
  return shapes;
}

T5Config tiny(bool gated = false, bool tied = true) {
  T5Config config = T5Config::preset("tiny");
  config.is_gated_act = gated;
  config.tie_word_embeddings = tied;
  return config;
}

T5 seeded(const T5Config& config) {
  torch::manual_seed(7);
  return T5(config);
}

Tensor random_ids(int64_t rows, int64_t length) {
  return torch::randint(3, 384, {rows, length}, torch::kLong);
}

double cross_entropy(const Tensor& logits, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten())
      .item<double>();
}

/// The published algorithm for one distance, in scalar arithmetic.
int64_t bucket_by_hand(int64_t relative_position, bool bidirectional, int64_t num_buckets,
                       int64_t max_distance) {
  int64_t first = 0;
  int64_t distance = std::max<int64_t>(-relative_position, 0);
  if (bidirectional) {
    num_buckets /= 2;
    first = relative_position > 0 ? num_buckets : 0;
    distance = std::abs(relative_position);
  }
  const int64_t exact = num_buckets / 2;
  if (distance < exact) return first + distance;
  const float share = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                      static_cast<float>(std::log(static_cast<double>(max_distance) / exact));
  const auto beyond = static_cast<int64_t>(share * static_cast<float>(num_buckets - exact));
  return first + std::min(exact + beyond, num_buckets - 1);
}

TEST(T5Model, HasTheParametersOfThePublicSmallCheckpoint) {
  const T5Config config = T5Config::preset("small");
  EXPECT_EQ(actual_shapes(T5(config)), published_shapes(config));
}

TEST(T5Model, HasTheParametersOfThePublicGatedUntiedCheckpoint) {
  const T5Config config = T5Config::preset("v1_1-small");
  EXPECT_EQ(actual_shapes(T5(config)), published_shapes(config));
}

TEST(T5Model, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(published_size("small"), 60'506'624);
  EXPECT_EQ(published_size("base"), 222'903'552);
  EXPECT_EQ(published_size("large"), 737'668'096);
  EXPECT_EQ(published_size("3b"), 2'851'598'336);
  EXPECT_EQ(published_size("11b"), 11'307'321'344);
  EXPECT_EQ(published_size("v1_1-small"), 76'961'152);
  EXPECT_EQ(published_size("v1_1-base"), 247'577'856);
}

TEST(T5Model, DemoHasThreeToFiveMillionParameters) {
  const T5Config config = T5Config::preset("demo");
  EXPECT_EQ(actual_shapes(T5(config)), published_shapes(config));
  EXPECT_GE(published_size("demo"), 3'000'000);
  EXPECT_LE(published_size("demo"), 5'000'000);
}

TEST(T5Model, RefusesAnUnknownPresetByName) {
  try {
    T5Config::preset("smal");
    FAIL() << "an unknown preset was accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("'smal'"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("small"), std::string::npos);
  }
}

TEST(T5Model, PutsRelativePositionsIntoThePublishedBuckets) {
  const Tensor positions = torch::arange(-300, 301);
  for (const bool bidirectional : {true, false}) {
    const Tensor buckets = relative_position_bucket(positions, bidirectional, 32, 128);
    for (int64_t i = 0; i < positions.numel(); ++i) {
      const auto position = positions[i].item<int64_t>();
      EXPECT_EQ(buckets[i].item<int64_t>(), bucket_by_hand(position, bidirectional, 32, 128))
          << "relative position " << position << (bidirectional ? ", both ways" : ", causal");
    }
  }
}

TEST(T5Model, BucketsMatchAHandCalculatedTable) {
  const Tensor positions =
      torch::tensor({-200, -128, -20, -8, -7, -1, 0, 1, 7, 8, 20, 200}, torch::kLong);
  const Tensor both_ways =
      torch::tensor({15, 15, 10, 8, 7, 1, 0, 17, 23, 24, 26, 31}, torch::kLong);
  const Tensor causal = torch::tensor({31, 31, 17, 8, 7, 1, 0, 0, 0, 0, 0, 0}, torch::kLong);
  EXPECT_TRUE(relative_position_bucket(positions, true, 32, 128).equal(both_ways));
  EXPECT_TRUE(relative_position_bucket(positions, false, 32, 128).equal(causal));
}

TEST(T5Model, BeginsNearTheLossOfAGuess) {
  torch::NoGradGuard no_grad;
  for (const bool tied : {true, false}) {
    T5 model = seeded(tiny(/*gated=*/false, tied));
    const Tensor labels = random_ids(8, 24);
    const double loss = cross_entropy(model(random_ids(8, 40), labels), labels);
    // Scores of unit variance cost half a nat more than a uniform guess.
    EXPECT_NEAR(loss, std::log(384.0) + 0.5, 0.5) << (tied ? "tied" : "untied");
  }
}

TEST(T5Model, NeverShowsALabelToItsOwnPrediction) {
  torch::NoGradGuard no_grad;
  T5 model = seeded(tiny());
  const Tensor inputs = random_ids(2, 20);
  const Tensor labels = random_ids(2, 12);
  Tensor changed = labels.clone();
  changed.slice(1, 6) = random_ids(2, 6);
  const Tensor before = model(inputs, labels);
  const Tensor after = model(inputs, changed);
  // The label at place 6 is first read by the decoder at place 7.
  EXPECT_TRUE(before.slice(1, 0, 7).equal(after.slice(1, 0, 7)));
  EXPECT_FALSE(before.slice(1, 7).allclose(after.slice(1, 7)));
}

TEST(T5Model, EveryPredictionSeesTheWholeInput) {
  torch::NoGradGuard no_grad;
  T5 model = seeded(tiny());
  const Tensor inputs = random_ids(1, 20);
  const Tensor labels = random_ids(1, 12);
  const Tensor before = model(inputs, labels);
  for (const int64_t place : {0, 19}) {
    Tensor changed = inputs.clone();
    changed[0][place] = inputs[0][place].item<int64_t>() == 9 ? 10 : 9;
    const Tensor difference = (model(inputs, labels) - model(changed, labels)).abs().amax(-1);
    EXPECT_GT(difference.min().item<float>(), 0.0F) << "input " << place;
  }
  EXPECT_TRUE(before.equal(model(inputs, labels)));
}

TEST(T5Model, PaddingOfTheInputChangesNothing) {
  torch::NoGradGuard no_grad;
  T5 model = seeded(tiny());
  const Tensor inputs = random_ids(2, 20);
  const Tensor labels = random_ids(2, 12);
  const Tensor padded = torch::cat({inputs, torch::zeros({2, 5}, torch::kLong)}, 1);
  EXPECT_TRUE(model(inputs, labels).allclose(model(padded, labels), 1e-4, 1e-5));
}

TEST(T5Model, IgnoredLabelsReadAsPaddingInTheDecoder) {
  torch::NoGradGuard no_grad;
  T5 model = seeded(tiny());
  const Tensor inputs = random_ids(1, 20);
  Tensor ignored = random_ids(1, 12);
  Tensor padded = ignored.clone();
  ignored.slice(1, 9) = -100;
  padded.slice(1, 9) = 0;
  EXPECT_TRUE(model(inputs, ignored).equal(model(inputs, padded)));
}

TEST(T5Model, EveryParameterLearns) {
  for (const bool gated : {false, true}) {
    for (const bool tied : {false, true}) {
      T5 model = seeded(tiny(gated, tied));
      const Tensor labels = random_ids(2, 12);
      const Tensor logits = model(random_ids(2, 20), labels);
      torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten()).backward();
      for (const auto& entry : model->named_parameters()) {
        ASSERT_TRUE(entry.value().grad().defined()) << entry.key();
        EXPECT_GT(entry.value().grad().abs().max().item<float>(), 0.0F) << entry.key();
      }
    }
  }
}

TEST(T5Model, LaterBlocksUseThePositionsOfTheFirst) {
  torch::NoGradGuard no_grad;
  const T5Config config = tiny();
  T5Block first(config, AttentionKind::kEncoder, /*owns_position_bias=*/true);
  T5Block later(config, AttentionKind::kEncoder, /*owns_position_bias=*/false);
  const Tensor hidden = torch::randn({2, 10, config.d_model});
  const Tensor mask = torch::zeros({2, 1, 1, 10});
  const BlockOutput output = first(hidden, mask, Tensor(), Tensor(), Tensor());
  ASSERT_EQ(output.position_bias.sizes().vec(),
            (std::vector<int64_t>{1, config.num_heads, 10, 10}));
  const BlockOutput with = later(output.hidden, mask, output.position_bias, Tensor(), Tensor());
  const BlockOutput without = later(output.hidden, mask, Tensor(), Tensor(), Tensor());
  EXPECT_FALSE(with.position_bias.defined());
  EXPECT_FALSE(with.hidden.allclose(without.hidden));
}

}  // namespace
}  // namespace t5
