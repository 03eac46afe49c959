// The GPT of samples/gpt equals one process in every mix of pipeline, tensor and data parallelism,
// and Hugging Face's GPT-2 (tests/data/make_references.py wrote its values); what it writes and
// reads is what it claims.
#include <gmock/gmock.h>

#include <cmath>

#include "gpt/plain_gpt.h"
#include "gpt/text.h"
#include "gpt/training.h"
#include "samples/gpt_testing.h"
#include "samples/reference.h"
#include "smp/smp.h"

namespace gpt {
namespace gpt_test {

using testing::HasSubstr;

namespace reference = smp::reference;

constexpr std::int64_t kSteps = 4;

struct Mix {
  int pp, tp, dp;
  const char* placement = "cluster";
  bool split_vocabulary = false;
  bool prescaled = false;
  int ranks() const { return pp * tp * dp; }
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << "pp " << mix.pp << ", tp " << mix.tp << ", dp " << mix.dp << ", " << mix.placement
       << (mix.split_vocabulary ? ", split vocabulary" : "")
       << (mix.prescaled ? ", prescaled batch" : "");
}

smp::Config config_of(const Mix& mix) {
  smp::Config config;
  config.pipeline_parallel_degree = mix.pp;
  config.tensor_parallel_degree = mix.tp;
  config.microbatches = small_recipe().microbatches;
  config.placement_strategy = mix.placement;
  config.prescaled_batch = mix.prescaled;
  config.plan_cache = "off";
  return config;
}

const Reference& in_one_process() {
  static const Reference reference = train_in_one_process(small_recipe(), small_text(), kSteps);
  return reference;
}

class GptMix : public testing::TestWithParam<Mix> {};

TEST_P(GptMix, EqualsOneProcessOnTheSameBatch) {
  const auto& expected = in_one_process();
  const auto mix = GetParam();
  int compared = 0;
  smp::run_local(mix.ranks(),
                 [&] {
                   ASSERT_EQ(smp::rdp_size(), mix.dp);
                   const auto text = small_text();
                   auto recipe = small_recipe();
                   recipe.model.split_vocabulary = mix.split_vocabulary;
                   Trainer trainer(recipe, text);
                   for (const double loss : expected.losses) {
                     EXPECT_NEAR(trainer.step(), loss, 1e-12 * loss);
                   }
                   const auto values = trainer.model().state_dict();
                   if (smp::rank() != 0) return;
                   for (const auto& item : expected.net->named_parameters()) {
                     const auto& [name, value] = item.pair();
                     ASSERT_TRUE(values.contains(name)) << name;
                     expect_same_values(values.at(name), value.detach(), name);
                     ++compared;
                   }
                 },
                 config_of(mix), {1});
  EXPECT_EQ(compared, static_cast<int>(expected.net->parameters().size()));
  EXPECT_LT(expected.losses.back(), 0.95 * expected.losses.front()) << "it learns";
}

INSTANTIATE_TEST_SUITE_P(Mixes, GptMix,
                         testing::Values(Mix{1, 1, 1}, Mix{2, 1, 1}, Mix{1, 2, 1}, Mix{1, 1, 2},
                                         Mix{1, 4, 1}, Mix{2, 2, 1}, Mix{2, 2, 2},
                                         Mix{2, 2, 2, "PTD"}));

INSTANTIATE_TEST_SUITE_P(SplitVocabulary, GptMix,
                         testing::Values(Mix{1, 1, 1, "cluster", true},
                                         Mix{1, 2, 1, "cluster", true},
                                         Mix{2, 4, 1, "cluster", true}, Mix{2, 2, 2, "PTD", true},
                                         Mix{1, 2, 1, "cluster", true, true},
                                         Mix{2, 2, 2, "spread", true, true}));

INSTANTIATE_TEST_SUITE_P(PrescaledBatch, GptMix,
                         testing::Values(Mix{1, 2, 1, "cluster", false, true},
                                         Mix{1, 4, 1, "cluster", false, true},
                                         Mix{2, 2, 1, "cluster", false, true},
                                         Mix{2, 2, 2, "PTD", false, true}));

TEST(GptTraining, RefusesRowsThatCannotBeDealt) {
  smp::run_local(4,
                 [] {
                   const auto text = small_text();
                   auto recipe = small_recipe();
                   recipe.rows = 12;
                   try {
                     Trainer trainer(recipe, text);
                     ADD_FAILURE() << "took 12 rows for 4 ranks with 2 microbatches each";
                   } catch (const std::invalid_argument& error) {
                     EXPECT_THAT(error.what(),
                                 HasSubstr("12 rows a step cannot be dealt to 4 batches"));
                     EXPECT_THAT(error.what(), HasSubstr("choose a multiple of 8"));
                   }
                 },
                 config_of({1, 2, 2}), {1});
}

/// After a training that has learnt one line by heart the likeliest bytes are those of the line.
TEST(GptTraining, WritesWhatItHasLearntInAnyMix) {
  const std::string line = "0123456789abcdef";
  std::string bytes;
  for (int i = 0; i < 20; ++i) bytes += line;
  auto recipe = small_recipe();
  recipe.model.width = 16;
  recipe.learning_rate = 3e-2;
  for (const Mix& mix :
       {Mix{1, 1, 1}, Mix{2, 2, 1}, Mix{1, 2, 2}, Mix{1, 2, 2, "TPD", true, true}}) {
    recipe.model.split_vocabulary = mix.split_vocabulary;
    smp::run_local(mix.ranks(),
                   [&] {
                     const Text text(bytes);
                     Trainer trainer(recipe, text);
                     for (int step = 0; step < 60; ++step) trainer.step();
                     // longer than the model sees, and begun with more than that
                     EXPECT_EQ(trainer.generate("?456789ab", 20, 0.01), "cdef0123456789abcdef");
                     EXPECT_EQ(trainer.generate("3", 4, 0.01), "4567");
                   },
                   config_of(mix), {1});
  }
}

TEST(GptText, HasRowsThatDependOnTheirNumberAlone) {
  const auto text = small_text();
  const auto whole = text.batch(7, 3, 0, 8, 6);
  EXPECT_TRUE(torch::equal(whole.tokens.narrow(1, 1, 5), whole.next.narrow(1, 0, 5)));
  const auto part = text.batch(7, 3, 2, 4, 6);
  EXPECT_TRUE(torch::equal(part.tokens, whole.tokens.narrow(0, 2, 4)));
  EXPECT_TRUE(torch::equal(part.next, whole.next.narrow(0, 2, 4)));
  EXPECT_FALSE(torch::equal(text.batch(7, 4, 0, 8, 6).tokens, whole.tokens)) << "another step";
  EXPECT_FALSE(torch::equal(text.batch(8, 3, 0, 8, 6).tokens, whole.tokens)) << "another seed";
  // A text of one window has that alone, with its last byte.
  EXPECT_TRUE(torch::equal(Text("ab\xff").batch(1, 1, 0, 1, 2).next,
                           torch::tensor({{98, 255}}, torch::kLong)));
  EXPECT_THROW(Text("ab").batch(1, 1, 0, 1, 2), std::invalid_argument);
  EXPECT_NEAR(Text("aabb").unigram_entropy(), std::log(2.), 1e-12);
  EXPECT_EQ(printable("a\x01\n~\xff"), "a?\n~?");
}

GptConfig published_config() {
  return {.vocabulary = 23, .length = 10, .width = 8, .heads = 2, .layers = 2};
}

TEST(GptWeights, MakeItHuggingFacesGpt2InPlainLibTorchAndSliced) {
  const auto weights = reference::weights_file("gpt2");
  const auto expected = reference::read("gpt2_reference");
  PlainGpt plain(published_config());
  plain->to(torch::kDouble);
  smp::hf::load(*plain, weights, published_names());
  reference::expect_close(plain(expected.at("input.input_ids")), expected.at("logits"), "logits");
  for (const Mix& mix : {Mix{1, 1, 1}, Mix{1, 2, 1}, Mix{2, 2, 1}, Mix{1, 2, 1, "cluster", true},
                         Mix{2, 2, 1, "cluster", true, true}}) {
    auto config = config_of(mix);
    config.microbatches = 1;
    smp::run_local(mix.ranks(),
                   [&] {
                     auto published = published_config();
                     published.split_vocabulary = mix.split_vocabulary;
                     Gpt net(published);
                     net->to(torch::kDouble);
                     smp::DistributedModel model(net);
                     smp::hf::load(model, weights, published_names());
                     const torch::NoGradGuard no_grad;
                     model.eval();
                     auto score = smp::step([&](const Tensor& tokens) { return model(tokens); });
                     const auto scores = score(expected.at("input.input_ids")).concat();
                     reference::expect_close(scores, expected.at("logits"), "logits");
                   },
                   config, {1});
  }
}

}  // namespace gpt_test
}  // namespace gpt
