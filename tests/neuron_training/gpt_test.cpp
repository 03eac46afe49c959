// neuron_training/gpt_test.cpp: the GPT of samples/gpt in two stages x two replicas x two slices,
// whose tensors travel between played Neuron cores, equals one process on the CPU. By hand,
// SMP_NEURON_ALL=1: on each way and release.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string_view>

#include "neuron_training/played_cores.h"
#include "samples/gpt_testing.h"
#include "smp/smp.h"

namespace gpt {
namespace neuron_gpt_test {

using smp::neuron_training::PlayedCores;
using smp::neuron_training::Way;

constexpr std::int64_t kSteps = 3;
constexpr int kRanks = 8;

smp::Config config_of_all_degrees() {
  static_cast<void>(smp::support::fake_device());
  smp::Config config;
  config.pipeline_parallel_degree = 2;
  config.tensor_parallel_degree = 2;
  config.microbatches = small_recipe().microbatches;
  config.plan_cache = "off";
  config.device = "neuron";
  return config;
}

void expect_as_in_one_process(const Reference& expected, Way way, int minor) {
  SCOPED_TRACE(testing::Message() << testing::PrintToString(way) << ", 2." << minor);
  int compared = 0;
  PlayedCores cores(kRanks, way, minor);
  const auto rank_main = [&] {
    const auto text = small_text();
    Trainer trainer(small_recipe(), text);
    for (const double loss : expected.losses) EXPECT_NEAR(trainer.step(), loss, 1e-12 * loss);
    const auto values = trainer.model().state_dict();
    if (smp::rank() != 0) return;
    for (const auto& item : expected.net->named_parameters()) {
      expect_same_values(values.at(item.key()).cpu(), item.value().detach(), item.key());
      ++compared;
    }
  };
  smp::start_local(kRanks, rank_main, config_of_all_degrees(), {1}, cores.options());
  EXPECT_EQ(compared, static_cast<int>(expected.net->parameters().size()));
  for (const auto& [name, number] : cores.arrived()) {
    EXPECT_GT(number, 50) << "tensors over " << name;
  }
}

TEST(GptBetweenNeuronCores, EqualsOneProcess) {
  const auto expected = train_in_one_process(small_recipe(), small_text(), kSteps);
  const char* const all = std::getenv("SMP_NEURON_ALL");
  if (all == nullptr || std::string_view(all) != "1") {
    return expect_as_in_one_process(expected, Way::kMixed, 34);
  }
  for (const auto way : smp::neuron_training::kWays) {
    for (const int minor : smp::d2d::kPlayedReleases) {
      expect_as_in_one_process(expected, way, minor);
    }
  }
}

}  // namespace neuron_gpt_test
}  // namespace gpt
