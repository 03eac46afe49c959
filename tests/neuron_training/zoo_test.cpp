// neuron_training/zoo_test.cpp: zoo models whose tensors travel between played Neuron cores equal
// one process on the CPU. By hand, SMP_NEURON_ALL=1: all of them, on each way and release.
#include <gmock/gmock.h>

#include <cstdlib>
#include <string_view>

#include "neuron_training/played_cores.h"
#include "zoo/differential.h"

/// The device computes what no device of LibTorch computes here.
const char* smp::support::fake_device_name() noexcept { return "neuron"; }

namespace smp::zoo {
namespace neuron_zoo_test {

using neuron_training::PlayedCores;
using neuron_training::Way;

bool all_wanted() {
  const char* const wanted = std::getenv("SMP_NEURON_ALL");
  return wanted != nullptr && std::string_view(wanted) == "1";
}

/// Returns how many tensors travelled between cores.
int expect_as_in_one_process(const Case& c, const Trace& reference, int ranks, Way way, int minor) {
  SCOPED_TRACE(testing::Message() << c.name << ", " << ranks << " ranks, 2." << minor << ", "
                                  << testing::PrintToString(way));
  static_cast<void>(support::fake_device());
  auto config = zoo_config("interleaved");
  config.device = "neuron";
  PlayedCores cores(ranks, way, minor);
  const auto placement = random_placement(c, ranks, 10 + static_cast<unsigned>(ranks));
  Trace ours;
  start_local(
      ranks,
      [&] {
        auto part = train_distributed(c, placement);
        ours.losses = part.losses;
        ours.gradients.merge(part.gradients);
        ours.finals.merge(part.finals);
      },
      config, {1}, cores.options());
  expect_equal(ours, reference, 1e-12);
  expect_complete(names_of(ours), reference);
  int all = 0;
  for (const auto& [name, number] : cores.arrived()) all += number;
  return all;
}

TEST(ZooBetweenNeuronCores, EqualsOneProcess) {
  const auto cases = all_cases();
  int arrived = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].random || (!all_wanted() && i % 6 != 0)) continue;
    const auto reference = train_in_one_process(cases[i]);
    if (!all_wanted()) {
      const auto way = neuron_training::kWays[i / 6 % std::size(neuron_training::kWays)];
      arrived += expect_as_in_one_process(cases[i], reference, 4, way, 34);
      continue;
    }
    for (const auto way : neuron_training::kWays) {
      for (const int minor : d2d::kPlayedReleases) {
        for (const int ranks : {2, 4}) {
          arrived += expect_as_in_one_process(cases[i], reference, ranks, way, minor);
        }
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(arrived, 100) << "tensors travelled between cores";
}

}  // namespace neuron_zoo_test
}  // namespace smp::zoo
