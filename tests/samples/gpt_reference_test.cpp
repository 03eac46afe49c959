// The transformer of samples/models against Hugging Face's GPT-2. tests/data/make_references.py
// wrote the values.
#include <gtest/gtest.h>

#include "models/gpt.h"
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
  const auto expected = reference::read("gpt2_reference");
  const auto tokens = expected.at("input.input_ids");
  for (const bool tied : {true, false}) {
    SCOPED_TRACE(tied ? "tied" : "untied");
    const auto config = config_of(tied);
    Gpt net(config);
    net->to(torch::kDouble);
    smp::hf::load(*net, reference::weights_file("gpt2"), published_names());
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
        ours, reference::as_own(reference::expected_gradients(expected), published_names()));
  }
}

}  // namespace
}  // namespace models
