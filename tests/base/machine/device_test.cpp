// The table of devices, and what an operator takes on one.
#include "base/machine/device.h"

#include <gmock/gmock.h>

#include <set>
#include <sstream>
#include <string>

#include "base/files.h"
#include "support/source_file.h"

namespace smp::base {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Device, AnOperatorTakesTheLongerOfComputingAndMovingAndItsLaunch) {
  Device device;
  device.peak = {1e9, 4e9, 8e9, 16e9};
  device.memory_bandwidth = 2e9;
  device.reached_peak = 0.5;
  device.reached_bandwidth = 0.25;
  device.launch_seconds = 1e-3;
  EXPECT_DOUBLE_EQ(device.seconds(1e9, Precision::kFloat32, 1e6), 0.5 + 1e-3);
  EXPECT_DOUBLE_EQ(device.seconds(1e9, Precision::kHalf, 1e6), 0.125 + 1e-3);
  EXPECT_DOUBLE_EQ(device.seconds(1e9, Precision::kFloat64, 1e6), 2 + 1e-3);
  EXPECT_DOUBLE_EQ(device.seconds(1e6, Precision::kFloat32, 1e9), 2 + 1e-3);
  EXPECT_DOUBLE_EQ(device.seconds(0, Precision::kFloat32, 0), 1e-3);
  EXPECT_DOUBLE_EQ(device.seconds(1e9, Precision::kFloat32, 1e6, 100), 0.5 + 1e-3);
  device.draw_seconds = 0.01;
  EXPECT_DOUBLE_EQ(device.seconds(1e9, Precision::kFloat32, 1e6, 100), 1 + 1e-3);
}

/// A slip by a thousand, or of a column, would not look like hardware any more.
TEST(Device, TheTableLooksLikeHardware) {
  std::set<std::string> names;
  for (const Device& device : devices()) {
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_EQ(find_device(device.name), &device);
    EXPECT_FALSE(device.about.empty()) << device.name;
    for (std::size_t i = 1; i < kPrecisions; ++i) {
      EXPECT_GE(device.peak[i], device.peak[i - 1]) << device.name << ", shorter numbers";
    }
    const double flops_per_byte = device.peak.back() / device.memory_bandwidth;
    EXPECT_GE(flops_per_byte, 4) << device.name;
    EXPECT_LE(flops_per_byte, 400) << device.name;
    EXPECT_LE(device.link_bandwidth, device.memory_bandwidth) << device.name;
    for (const double share : {device.reached_peak, device.reached_bandwidth}) {
      EXPECT_GT(share, 0) << device.name;
      EXPECT_LE(share, 1) << device.name;
    }
    // What only passes results on must stay below one operator (simulate/step_program.h).
    EXPECT_GE(device.launch_seconds, 3e-6) << device.name;
    EXPECT_LE(device.launch_seconds, 20e-6) << device.name;
  }
  EXPECT_THAT(device_names(), ElementsAre("cpu", "a100", "h100", "h200", "trainium",
                                          "neuroncore-v2", "neuroncore-v3x2", "neuroncore-v4x2",
                                          "a100-40gb", "gh200", "mi250x-gcd"));
  EXPECT_EQ(find_device("H100"), nullptr);
}

TEST(Device, TheCoresOfATrainiumMakeTheChip) {
  const auto &chip = *find_device("trainium"), &core = *find_device("neuroncore-v2");
  for (std::size_t i = 0; i < kPrecisions; ++i) EXPECT_DOUBLE_EQ(2 * core.peak[i], chip.peak[i]);
  EXPECT_DOUBLE_EQ(2 * core.memory_bandwidth, chip.memory_bandwidth);
  EXPECT_DOUBLE_EQ(2 * core.link_bandwidth, chip.link_bandwidth);
  EXPECT_EQ(2 * core.memory_bytes, chip.memory_bytes);
  EXPECT_EQ(core.launch_seconds, chip.launch_seconds);
}

/// "989.4" of 989.4e12.
std::string in_units(double value, double unit) {
  std::ostringstream text;
  text << value / unit;
  return text.str();
}

TEST(Device, TheDocumentHasItsFigures) {
  const auto document = read_file(support::source_file("docs/partitioning.md"));
  for (const Device& device : devices()) {
    const auto begin = document.find("\n| `" + device.name + "` | " + device.about + " |");
    ASSERT_NE(begin, std::string::npos) << device.name << ", " << device.about;
    const auto row = document.substr(begin + 1, document.find('\n', begin + 1) - begin - 1);
    for (const double peak : device.peak) {
      EXPECT_THAT(row, HasSubstr("| " + in_units(peak, 1e12))) << "TFLOP/s of " << device.name;
    }
    for (const double bandwidth : {device.memory_bandwidth, device.link_bandwidth}) {
      if (bandwidth == 0) continue;
      EXPECT_THAT(row, AnyOf(HasSubstr("| " + in_units(bandwidth, 1e9) + " GB/s"),
                             HasSubstr("| " + in_units(bandwidth, 1 << 30) + " GiB/s")))
          << device.name;
    }
  }
}

TEST(Device, NamesAreSplitAtCommas) {
  EXPECT_THAT(split_devices("h100, a100 ,cpu", 3), ElementsAre("h100", "a100", "cpu"));
  EXPECT_THAT(split_devices("h100", 3), ElementsAre("h100", "h100", "h100"));
  EXPECT_THAT(split_devices("h100,", 3), ElementsAre("h100", ""));
  EXPECT_THAT(split_devices("", 3), IsEmpty());
  EXPECT_THAT(split_devices("  ", 3), IsEmpty());
}

}  // namespace
}  // namespace smp::base
