// device/gpt_test.cpp: on a device whose memory the host cannot touch the GPT of samples/gpt equals
// one process on the CPU in mixes of pipeline, tensor and data parallelism; what it saved is what
// one process has.
#include <gmock/gmock.h>

#include "samples/gpt_testing.h"
#include "smp/smp.h"
#include "support/fake_device.h"
#include "support/refusal.h"

namespace gpt {
namespace device_gpt_test {

constexpr std::int64_t kSteps = 3;

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
      expect_same_values(values.at(item.key()).cpu(), item.value().detach(), item.key());
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

/// Those of a checkpoint are on the CPU, those of state_dict() where the model is.
TEST(GptOnDevice, TakesADictOfItsOwnDeviceBack) {
  const auto rank_main = [] {
    const auto text = small_text();
    Trainer trainer(small_recipe(), text);
    trainer.step();
    auto& model = trainer.model();
    const auto before = model.state_dict();
    smp::StateDict copies;
    for (const auto& [name, tensor] : before) copies.insert(name, tensor.clone());
    if (smp::rank() == 0) {
      EXPECT_FALSE(copies.begin()->second.is_cpu());
    }
    trainer.step();
    model.load_state_dict(copies);
    const auto after = model.state_dict();
    for (const auto& [name, tensor] : copies) {
      EXPECT_TRUE(torch::equal(after.at(name).cpu(), tensor.cpu())) << name;
    }
  };
  smp::run_local(2, rank_main, config_of({2, 1, 1}), {1});
}

/// Values on the device are compared as those on the CPU are.
TEST(GptOnDevice, IsRefusedWhereRanksHaveDifferentValues) {
  const auto refused = [](const smp::Config& config, auto&& make_recipe, auto&& make_text) {
    return smp::refusal([&] {
      const auto rank_main = [&] {
        const auto text = make_text();
        Trainer trainer(make_recipe(), text);
        trainer.step();
      };
      smp::run_local(2, rank_main, config, {1});
    });
  };
  const auto recipe_of_rank = [] {
    auto recipe = small_recipe();
    recipe.seed = static_cast<std::uint64_t>(smp::rank());
    return recipe;
  };
  EXPECT_THAT(refused(config_of({2, 1, 1}), recipe_of_rank, small_text),
              testing::HasSubstr("differs between ranks"));
  auto one_batch = config_of({1, 2, 1});
  one_batch.prescaled_batch = true;
  const auto text_of_rank = [] {
    return smp::rank() == 0 ? small_text() : Text(std::string(200, 'x'));
  };
  EXPECT_THAT(refused(one_batch, small_recipe, text_of_rank),
              testing::HasSubstr("were given different ones"));
}

}  // namespace device_gpt_test
}  // namespace gpt
