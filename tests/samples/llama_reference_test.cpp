// The Llama-shaped model of samples/models against Hugging Face's. tests/data/make_references.py
// wrote the values.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/llama.h"
#include "samples/reference.h"

namespace models {
namespace {

namespace reference = smp::reference;

LlamaConfig sizes(int64_t kv_heads) {
  LlamaConfig config;
  config.vocab_size = 23;
  config.hidden_size = 16;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = kv_heads;
  config.head_dim = 8;
  return config;
}

LlamaConfig llama3() {
  auto config = sizes(2);
  config.tie_word_embeddings = true;
  config.rope.scaling(nn::RotaryScaling::kLlama3).rope_theta(500).factor(4);
  config.rope.original_max_positions(16);
  return config;
}

LlamaConfig qwen3() {
  auto config = sizes(2);
  config.qk_norm = true;
  return config;
}

LlamaConfig mistral() {
  auto config = sizes(1);
  config.sliding_window = 3;
  return config;
}

LlamaConfig gemma() {
  auto config = sizes(2);
  config.tie_word_embeddings = true;
  config.norm_unit_offset = true;
  config.scale_embeddings = true;
  config.activation = nn::GateActivation::kGeluTanh;
  return config;
}

struct Shape {
  std::string name;
  LlamaConfig config;
};

class LlamaReference : public testing::TestWithParam<Shape> {};

/// The loss over tokens that are there, as the reference has it.
Tensor loss_of(const Tensor& scores, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      scores.narrow(1, 0, scores.size(1) - 1).flatten(0, 1),
      labels.narrow(1, 1, labels.size(1) - 1).flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-100));
}

TEST_P(LlamaReference, EqualsHuggingFaces) {
  const auto& [name, config] = GetParam();
  const auto expected = reference::read(name + "_reference");
  Llama net(config);
  net->to(torch::kDouble);
  smp::hf::load(*net, reference::weights_file(name), smp::hf::Family::kLlama);
  const auto present = expected.at("input.attention_mask");
  const auto scores = net->scores(expected.at("input.input_ids"), present);
  // What follows padding says nothing: Hugging Face's padding does not see itself.
  const auto there = present.to(torch::kBool);
  reference::expect_close(scores.index({there}), expected.at("logits").index({there}), "logits");
  const auto loss = loss_of(scores, expected.at("input.labels"));
  reference::expect_close(loss, expected.at("loss"), "loss");
  loss.backward();
  reference::expect_same_gradients(reference::gradients_of(*net),
                                   reference::expected_gradients(expected));
}

INSTANTIATE_TEST_SUITE_P(Models, LlamaReference,
                         testing::Values(Shape{"llama", sizes(4)}, Shape{"llama3", llama3()},
                                         Shape{"qwen3", qwen3()}, Shape{"mistral", mistral()},
                                         Shape{"gemma", gemma()}),
                         [](const auto& info) { return info.param.name; });

LlamaConfig stretched(nn::RotaryScaling scaling, double factor) {
  auto config = sizes(4);
  config.rope.scaling(scaling).factor(factor).max_positions(6).original_max_positions(6);
  return config;
}

struct Training {
  std::string name, files;
  LlamaConfig config;
};

class LlamaTrained : public testing::TestWithParam<Training> {};

/// In float32, in which the two libraries round differently.
TEST_P(LlamaTrained, EqualsHuggingFacesAfterEightSteps) {
  constexpr double kTolerance = 1e-5;
  const auto& [name, files, config] = GetParam();
  const auto expected = reference::read("trained_reference");
  const auto inputs = reference::read(files + "_reference");
  Llama net(config);
  smp::hf::load(*net, reference::weights_file(files), smp::hf::Family::kLlama);
  torch::optim::SGD optimizer(net->parameters(), expected.at(name + ".rate").item<double>());
  std::vector<Tensor> losses;
  for (int step = 0; step < 8; ++step) {
    optimizer.zero_grad();
    const auto scores =
        net->scores(inputs.at("input.input_ids"), inputs.at("input.attention_mask"));
    losses.push_back(loss_of(scores, inputs.at("input.labels")));
    losses.back().backward();
    optimizer.step();
  }
  reference::expect_close(torch::stack(losses).detach(), expected.at(name + ".losses"), "losses",
                          kTolerance);
  for (const auto& item : net->named_parameters()) {
    reference::expect_close(item.value().detach(), expected.at(name + '.' + item.key()), item.key(),
                            kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LlamaTrained,
    testing::Values(Training{"llama", "llama", sizes(4)}, Training{"llama3", "llama3", llama3()},
                    Training{"qwen3", "qwen3", qwen3()}, Training{"mistral", "mistral", mistral()},
                    Training{"gemma", "gemma", gemma()},
                    Training{"linear", "llama", stretched(nn::RotaryScaling::kLinear, 3)},
                    Training{"dynamic", "llama", stretched(nn::RotaryScaling::kDynamic, 2.5)},
                    Training{"yarn", "llama", stretched(nn::RotaryScaling::kYarn, 4)}),
    [](const auto& info) { return info.param.name; });

nn::RotaryEmbeddingOptions rope(nn::RotaryScaling scaling, double factor) {
  return nn::RotaryEmbeddingOptions(64).scaling(scaling).factor(factor).max_positions(64);
}

/// Equal but for the last digit, which LibTorch's vectorised powers leave to the processor.
TEST(RopeReference, FrequenciesAreHuggingFaces) {
  using enum nn::RotaryScaling;
  const std::vector<std::pair<std::string, nn::RotaryEmbeddingOptions>> ways = {
      {"default", rope(kDefault, 1)},
      {"linear", rope(kLinear, 3)},
      {"dynamic", rope(kDynamic, 2.5)},
      {"llama3", rope(kLlama3, 8).original_max_positions(32)},
      {"yarn", rope(kYarn, 4).original_max_positions(16)},
      {"yarn_mscale", rope(kYarn, 40)
                          .original_max_positions(64)
                          .mscale(0.7)
                          .mscale_all_dim(1.1)
                          .beta_fast(3)
                          .beta_slow(0.5)
                          .truncate(false)}};
  const auto expected = reference::read("rope_reference");
  for (const auto& [name, options] : ways) {
    const nn::RotaryEmbedding rotary(options);
    const auto relative =
        (rotary->frequencies(100) / expected.at(name + ".frequencies") - 1).abs().max();
    EXPECT_LE(relative.item<double>(), 2.4e-7) << name;
    EXPECT_NEAR(rotary->attention_factor(), expected.at(name + ".factor").item<double>(), 1e-12)
        << name;
  }
}

}  // namespace
}  // namespace models
