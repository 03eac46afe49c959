// device/played_collectives_test.cpp: on a device whose memory the host cannot touch, tensor
// parallelism whose collectives the device does equals one process on the CPU.
#include <gmock/gmock.h>

#include "d2d/collectives/played_devices.h"
#include "samples/gpt_testing.h"
#include "smp/smp.h"
#include "support/fake_device.h"
#include "support/refusal.h"

namespace gpt {
namespace device_played_collectives_test {

constexpr std::int64_t kSteps = 3;

smp::Config config_of(int pp, int tp) {
  smp::Config config;
  config.pipeline_parallel_degree = pp;
  config.tensor_parallel_degree = tp;
  config.microbatches = small_recipe().microbatches;
  config.plan_cache = "off";
  config.device = "fake";
  config.device_collectives = "nccl";
  return config;
}

/// While it lives, the fake device has collectives.
class OnDevice : public testing::Test {
 protected:
  OnDevice() { smp::d2d::set_device_collectives(c10::DeviceType::PrivateUse1, devices->end()); }
  ~OnDevice() override { smp::d2d::set_device_collectives(c10::DeviceType::PrivateUse1, nullptr); }
  std::shared_ptr<smp::d2d::PlayedDevices> devices =
      smp::d2d::PlayedDevices::make(1, {.device = smp::support::fake_device(), .at_once = true});
};

using CollectivesOnDevice = OnDevice;

TEST_F(CollectivesOnDevice, OfAGptGiveWhatOneProcessComputes) {
  const auto expected = train_in_one_process(small_recipe(), small_text(), kSteps);
  struct Mix {
    int pp, tp, dp;
    bool split_vocabulary;
  };
  for (const auto& mix : {Mix{1, 2, 1, false}, Mix{2, 2, 2, false}, Mix{1, 2, 1, true}}) {
    const auto before = devices->done();
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
    smp::run_local(mix.pp * mix.tp * mix.dp, rank_main, config_of(mix.pp, mix.tp), {1});
    EXPECT_EQ(compared, static_cast<int>(expected.net->parameters().size()));
    EXPECT_GT(devices->done(), before + 20);
  }
  EXPECT_TRUE(devices->even());
  EXPECT_EQ(devices->disorders, 0);
  EXPECT_EQ(devices->aborted, 0);
}

TEST_F(CollectivesOnDevice, AreRefusedWhereRanksShareADevice) {
  smp::d2d::set_device_collectives(c10::DeviceType::PrivateUse1, devices->end("the only one"));
  const auto answer =
      smp::refusal<smp::UnsupportedError>([] { smp::run_local(2, [] {}, config_of(1, 2), {1}); });
  EXPECT_THAT(answer, testing::AllOf(testing::HasSubstr("TP_GROUP {0, 1}"),
                                     testing::HasSubstr("ranks 0 and 1 are on one device")));
}

}  // namespace device_played_collectives_test
}  // namespace gpt
