// device/zoo_test.cpp: every zoo model trains on a device whose memory the host cannot touch, and
// equals one process on the CPU; random numbers are the device's own; what cannot be chosen.
#include <gmock/gmock.h>

#include "support/fake_device.h"
#include "support/refusal.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace zoo_test {

using support::fake_device;
using testing::AllOf;
using testing::HasSubstr;

Config on_device(const std::string& schedule) {
  static_cast<void>(fake_device());
  auto config = zoo_config(schedule);
  config.device = "fake";
  return config;
}

Trace train(const Case& c, int ranks, const Config& config,
            const std::map<std::string, int>& placement, uint64_t seed) {
  Trace whole;
  run_local(ranks,
            [&] {
              auto part = train_distributed(c, placement);
              whole.losses = part.losses;
              whole.gradients.merge(part.gradients);
              whole.finals.merge(part.finals);
            },
            config, {seed});
  return whole;
}

class ZooOnDevice : public testing::TestWithParam<std::size_t> {};

TEST_P(ZooOnDevice, EqualsOneProcessOnTheCpu) {
  const auto c = all_cases()[GetParam()];
  SCOPED_TRACE(c.name);
  const auto reference =
      c.random ? train(c, 1, on_device("simple"), {}, 1) : train_in_one_process(c);
  for (const auto* schedule : {"interleaved", "simple"}) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << schedule << ", " << ranks << " ranks");
      const auto placement = random_placement(c, ranks, 10 + static_cast<unsigned>(ranks));
      const auto ours = train(c, ranks, on_device(schedule), placement, 1);
      expect_equal(ours, reference, 1e-12);
      expect_complete(names_of(ours), reference);
      if (HasFailure()) return;
    }
  }
}

/// Recorded steps, with and without a detour through the caller.
TEST_P(ZooOnDevice, EqualsOneProcessWhenStepsAreReplayed) {
  const auto c = all_cases()[GetParam()];
  if (c.random) return;  // masks of the device are others
  SCOPED_TRACE(c.name);
  const auto reference = train_in_one_process(c);
  for (const bool fast : {false, true}) {
    auto config = on_device("interleaved");
    config.static_mode = true;
    config.fast_mode = fast;
    const auto ours = train(c, 3, config, random_placement(c, 3, 2), 1);
    expect_equal(ours, reference, 1e-12);
  }
}

/// Moved to the device when it has no values yet.
TEST_P(ZooOnDevice, EqualsOneProcessWhenItsValuesCameLater) {
  const auto c = all_cases()[GetParam()];
  if (c.random) return;
  SCOPED_TRACE(c.name);
  const auto placement = random_placement(c, 3, 4);
  Trace whole;
  const auto rank_main = [&] {
    auto part = train_distributed(c, placement, torch::kDouble, InitOrder::kAsWritten);
    whole.losses = part.losses;
    whole.gradients.merge(part.gradients);
    whole.finals.merge(part.finals);
  };
  run_local(3, rank_main, on_device("interleaved"), {1});
  expect_equal(whole, train_in_one_process(c), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(All, ZooOnDevice, testing::Range(std::size_t{0}, all_cases().size()));

/// The trial run for the plan is that of a copy of the process, which cannot use the device; the
/// plan is that of the CPU all the same. Costs differ by what depends on values.
TEST(PlanOnDevice, IsThatOfTheSameModelOnTheCpu) {
  const auto partition_on = [](const std::string& device) {
    auto config = on_device("interleaved");
    config.device = device;
    config.auto_partition = true;
    config.default_partition.reset();
    std::string text;  // of both ranks
    const auto rank_main = [&] {
      nn::Sequential chain(nn::Linear(64, 64), nn::Linear(64, 512), nn::Linear(512, 64),
                           nn::Linear(64, 64), nn::Linear(64, 1));
      chain->to(torch::Device(smp::device()));
      DistributedModel model(chain);
      auto run = step([&](const Tensor& x) {
        const auto steps = torch::arange(x.size(0), torch::TensorOptions(smp::device())) > 1;
        const auto loss = model(x.masked_fill(x == 0, 1)).squeeze(1).masked_select(steps).mean();
        model.backward(loss);
        return loss;
      });
      run(torch::ones({8, 64}, smp::device()));
      for (const auto& row : model.plan().rows()) {
        text += "'" + row.path + "' on " + std::to_string(row.pp_rank) + "; ";
        if (row.path == "2") {
          EXPECT_NEAR(row.cost, 0.336, 0.01) << "seen, not counted";
        }
      }
    };
    testing::internal::CaptureStderr();
    run_local(2, rank_main, config);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::Not(HasSubstr("could not be run in advance")))
        << device;
    return text;
  };
  EXPECT_EQ(partition_on("fake"), partition_on("cpu"));
}

/// Masks of dropout on the device depend on neither placement nor schedule, and the program's own
/// generator goes on as if nothing had been.
TEST(DeviceRandomNumbers, DependOnNeitherPlacementNorTiming) {
  for (const auto& c : all_cases()) {
    if (!c.random) continue;
    SCOPED_TRACE(c.name);
    const auto first = train(c, 1, on_device("simple"), {}, 1);
    for (const int ranks : {2, 4}) {
      const auto ours = train(c, ranks, on_device("interleaved"), random_placement(c, ranks, 3), 7);
      expect_equal(ours, first, 1e-12);
    }
    auto other = on_device("simple");
    other.seed = 5;
    EXPECT_NE(train(c, 1, other, {}, 1).losses, first.losses) << "the seed counts";
  }
}

TEST(DeviceRandomNumbers, LeaveTheProgramsOwnGeneratorAlone) {
  const auto seed = [] {
    auto own = at::globalContext().defaultGenerator(fake_device());
    own.set_current_seed(42);
  };
  seed();
  const auto expected = torch::rand({4}, fake_device()).cpu();
  const auto rank_main = [&] {
    seed();
    nn::Dropout dropout(0.5);
    DistributedModel model(dropout);
    auto run = step([&](const Tensor& x) { return model(x); });
    const auto mask = run(torch::ones({4, 100}, device())).concat();
    EXPECT_TRUE((mask == 0).any().item<bool>()) << "something was drawn";
    EXPECT_TRUE(torch::equal(torch::rand({4}, fake_device()).cpu(), expected));
  };
  run_local(1, rank_main, on_device("simple"));
}

TEST(DeviceOfARank, IsNamedAsLibTorchDoes) {
  static_cast<void>(fake_device());
  const auto error_with = [](const std::string& device) {
    Config config;
    config.device = device;
    return refusal([&] {
      run_local(
          1, [] {}, config);
    });
  };
  EXPECT_THAT(error_with("cudda"), HasSubstr("LibTorch knows no such device; use cpu or cuda"));
  EXPECT_THAT(error_with("fake:0"), HasSubstr("leave the number out"));
  if (!c10::impl::hasDeviceGuardImpl(at::kCUDA)) {
    EXPECT_THAT(error_with("cuda"), AllOf(HasSubstr("device = cuda: this LibTorch was built"),
                                          HasSubstr("libtorch_cuda.so")));
  }
  Config config;
  config.device = "fake";
  run_local(
      2, [] { EXPECT_EQ(device(), fake_device()); }, config);
  config.device = "cpu";
  run_local(
      2, [] { EXPECT_EQ(device(), at::Device(at::kCPU)); }, config);
}

}  // namespace zoo_test
}  // namespace smp::zoo
