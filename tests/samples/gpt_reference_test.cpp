// The transformer of samples/models against Hugging Face's GPT-2. tests/data/make_references.py
// wrote the values.
#include <gtest/gtest.h>

#include "models/gpt.h"
#include "models/gpt_weights.h"
#include "samples/reference.h"

namespace models {
namespace {

namespace reference = smp::reference;

GptConfig config_of(bool tied) {
  GptConfig config;
  config.vocabulary = 23;
  config.length = 10;
  config.width = 8;
  config.heads = 2;
  config.layers = 2;
  config.tied = tied;
  return config;
}

TEST(GptReference, EqualsHuggingFacesGpt2) {
  const auto weights = reference::read("gpt2_weights");
  const auto expected = reference::read("gpt2_reference");
  const auto tokens = expected.at("input.input_ids");
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied ? "tied" : "untied");
    const auto config = config_of(tied);
    Gpt net(config);
    net->to(torch::kDouble);
    smp::load_state_dict(*net, from_public_gpt2(weights, config));
    reference::expect_close(net->scores(tokens), expected.at("logits"), "logits");
    const auto loss = net->forward(tokens);
    reference::expect_close(loss, expected.at("loss"), "loss");
    loss.backward();
    // The gradient of a table that is read twice is the sum of both readers'.
    auto ours = reference::gradients_of(*net);
    if (!tied) {
      const auto sum = ours.at("transformer.wte.weight") + ours.at("lm_head.weight");
      ours.erase("transformer.wte.weight");
      ours.erase("lm_head.weight");
      ours.insert("transformer.wte.weight", sum);
    }
    reference::expect_same_gradients(
        ours, from_public_gpt2(reference::expected_gradients(expected), config_of(true)));
  }
}

TEST(GptReference, ReadsNamesWithoutPrefixAndLeavesOutMasks) {
  const smp::StateDict published{{"wte.weight", torch::ones({3, 2})},
                                 {"h.0.attn.bias", torch::ones({1, 1, 4, 4})},
                                 {"h.0.attn.c_attn.weight", torch::ones({2, 6})},
                                 {"h.0.attn.c_attn.bias", torch::ones({6})}};
  const auto ours = from_public_gpt2(published, config_of(true));
  EXPECT_EQ(ours.names(), (std::vector<std::string>{"transformer.wte.weight",
                                                    "transformer.h.0.attention.qkv.weight",
                                                    "transformer.h.0.attention.qkv.bias"}));
  EXPECT_EQ(ours.at("transformer.h.0.attention.qkv.weight").sizes(), (c10::IntArrayRef{6, 2}));
}

TEST(GptReference, RefusesTwoMatricesForATiedTable) {
  const auto table = torch::ones({3, 2});
  const smp::StateDict same{{"wte.weight", table}, {"lm_head.weight", table.clone()}};
  const smp::StateDict apart{{"wte.weight", table}, {"lm_head.weight", table * 2}};
  EXPECT_EQ(from_public_gpt2(same, config_of(true)).size(), 1u);
  EXPECT_THROW(from_public_gpt2(apart, config_of(true)), std::invalid_argument);
  EXPECT_EQ(from_public_gpt2(apart, config_of(false)).size(), 2u);
}

}  // namespace
}  // namespace models
