// device/gpt_test.cpp: on a device whose memory the host cannot touch the GPT of samples/gpt equals
// one process on the CPU in mixes of pipeline, tensor and data parallelism; what it saved is what
// one process has.
#include <gmock/gmock.h>

#include "gpt/text.h"
#include "gpt/training.h"
#include "smp/smp.h"
#include "support/fake_device.h"

namespace gpt {
namespace device_gpt_test {

constexpr std::int64_t kSteps = 3;

Recipe small_recipe() {
  Recipe recipe;
  recipe.model = {.length = 6, .width = 8, .heads = 4, .layers = 3};
  recipe.rows = 16;
  recipe.microbatches = 2;
  recipe.learning_rate = 1e-2;
  recipe.dtype = torch::kDouble;
  return recipe;
}

Text small_text() {
  return Text("It is a truth universally acknowledged, that a single man must be in want of one.");
}

struct Mix {
  int pp, tp, dp;
  bool split_vocabulary = false;
  bool shard_optimizer = false;
};

void PrintTo(const Mix& mix, std::ostream* out) {
  *out << "pp " << mix.pp << ", tp " << mix.tp << ", dp " << mix.dp
       << (mix.split_vocabulary ? ", split vocabulary" : "")
       << (mix.shard_optimizer ? ", sharded optimizer" : "");
}

smp::Config config_of(const Mix& mix) {
  static_cast<void>(smp::support::fake_device());
  smp::Config config;
  config.pipeline_parallel_degree = mix.pp;
  config.tensor_parallel_degree = mix.tp;
  config.microbatches = small_recipe().microbatches;
  config.shard_optimizer_state = mix.shard_optimizer;
  config.plan_cache = "off";
  config.device = "fake";
  return config;
}

class GptOnDevice : public testing::TestWithParam<Mix> {};

/// As on the CPU; biases of keys are 0 but for rounding.
TEST_P(GptOnDevice, EqualsOneProcessOnTheCpu) {
  const auto expected = train_in_one_process(small_recipe(), small_text(), kSteps);
  const auto mix = GetParam();
  int compared = 0;
  const auto rank_main = [&] {
    const auto text = small_text();
    auto recipe = small_recipe();
    recipe.model.split_vocabulary = mix.split_vocabulary;
    Trainer trainer(recipe, text);
    for (const double loss : expected.losses) EXPECT_NEAR(trainer.step(), loss, 1e-12 * loss);
    const auto values = trainer.model().state_dict();
    if (smp::rank() != 0) return;
    for (const auto& item : expected.net->named_parameters()) {
      const auto ours = values.at(item.key()).cpu();
      const double scale = std::max(1e-3, item.value().abs().max().item<double>());
      EXPECT_LE((ours - item.value()).abs().max().item<double>(), 1e-10 * scale) << item.key();
      ++compared;
    }
  };
  smp::run_local(mix.pp * mix.tp * mix.dp, rank_main, config_of(mix), {1});
  EXPECT_EQ(compared, static_cast<int>(expected.net->parameters().size()));
}

INSTANTIATE_TEST_SUITE_P(Mixes, GptOnDevice,
                         testing::Values(Mix{1, 1, 1}, Mix{2, 1, 1}, Mix{1, 2, 1}, Mix{1, 1, 2},
                                         Mix{2, 2, 2}, Mix{1, 2, 1, true},
                                         Mix{2, 1, 2, false, true}));

}  // namespace device_gpt_test
}  // namespace gpt
