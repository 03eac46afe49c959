// base/machine/device.cpp: the table. Adding a device is one entry.
#include "base/machine/device.h"

#include <algorithm>

namespace smp::base {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;

/// Assumed shares that LibTorch's products reach of a data sheet's peak, and plain operators of its
/// bandwidth, at the sizes of a training step. Large products reach more, small ones far less.
constexpr double kReachedPeak = 0.6;
constexpr double kReachedBandwidth = 0.8;

/// Assumed seconds in which LibTorch and autograd issue an operator to a GPU; kernels do not
/// overlap. Less on Trainium, which runs programs of a graph compiler.
constexpr double kGpuLaunch = 6 * kMicro;
constexpr double kTrainiumLaunch = 3 * kMicro;

/// One core of a server, with the speed that LibTorch reaches on it instead of a vendor's peak.
/// LibTorch and autograd spend 3 us on any operator, its generator 8 ns on each number of a dropout
/// mask. Half precision is computed as float32.
Device core() {
  Device device;
  device.name = "cpu";
  device.about = "one core of a server";
  device.peak = {25 * kGiga, 50 * kGiga, 50 * kGiga, 50 * kGiga};
  device.memory_bandwidth = 10 * kGiga;
  device.launch_seconds = 3 * kMicro;
  device.draw_seconds = 8e-9;
  return device;
}

/// Returns an accelerator with the assumed shares and launch time of a GPU.
/// @param peak    TFLOP/s of dense products: float64, float32, TF32, half
/// @param memory  bytes
/// @param bandwidth, link  GB/s
Device accelerator(const char* name, const char* about, const std::array<double, kPrecisions>& peak,
                   double bandwidth, double memory, double link) {
  Device device;
  device.name = name;
  device.about = about;
  for (std::size_t i = 0; i < kPrecisions; ++i) device.peak[i] = peak[i] * kTera;
  device.memory_bandwidth = bandwidth * kGiga;
  device.reached_peak = kReachedPeak;
  device.reached_bandwidth = kReachedBandwidth;
  device.launch_seconds = kGpuLaunch;
  device.memory_bytes = static_cast<std::int64_t>(memory);
  device.link_bandwidth = link * kGiga;
  return device;
}

/// The data sheet "NVIDIA A100 Tensor Core GPU": SXM, 80 GB; 600 GB/s of NVLink, both ways
/// together.
Device a100() {
  return accelerator("a100", "NVIDIA A100 SXM4 80 GB", {19.5, 19.5, 156, 312}, 2039, 80e9, 300);
}

/// The data sheet "NVIDIA H100 Tensor Core GPU": SXM; it gives TF32 and half with sparsity, here
/// they are without. 900 GB/s of NVLink, both ways together.
Device h100() {
  return accelerator("h100", "NVIDIA H100 SXM5 80 GB", {67, 67, 494.7, 989.4}, 3350, 80e9, 450);
}

/// The data sheet "NVIDIA H200 Tensor Core GPU": SXM; it computes as an H100, with more memory.
Device h200() {
  return accelerator("h200", "NVIDIA H200 SXM5 141 GB", {67, 67, 494.7, 989.4}, 4800, 141e9, 450);
}

/// The AWS Neuron documentation, "Trainium Architecture": a chip of two NeuronCore-v2, 820 GiB/s.
/// It has no float64, so float32 stands for it. "Trn1 Architecture": 384 GiB/s of NeuronLink-v2 per
/// chip, taken to be both ways together.
Device trainium() {
  constexpr double kGiB = 1073741824;
  auto device = accelerator("trainium", "AWS Trainium, one chip", {47.5, 47.5, 190, 190},
                            820 * kGiB / kGiga, 32 * kGiB, 192 * kGiB / kGiga);
  device.launch_seconds = kTrainiumLaunch;
  return device;
}

/// A logical core of a chip whose cores share its memory, its bandwidth and its links alike.
/// @param chip  TFLOP/s of float32 and of all shorter numbers, of the chip; others as
///              accelerator()
Device logical_core(const char* name, const char* about, double cores, std::array<double, 2> chip,
                    double bandwidth, double memory, double link) {
  const double single = chip[0] / cores, half = chip[1] / cores;
  auto device = accelerator(name, about, {single, single, half, half}, bandwidth / cores,
                            memory / cores, link / cores);
  device.launch_seconds = kTrainiumLaunch;
  return device;
}

/// Half of trainium(): "NeuronCore-v2 Architecture".
Device neuroncore_v2() {
  constexpr double kGiB = 1073741824;
  return logical_core("neuroncore-v2", "AWS Trainium, a core of 2", 2, {47.5, 190},
                      820 * kGiB / kGiga, 32 * kGiB, 192 * kGiB / kGiga);
}

/// "Trainium2 Architecture", of eight cores of which two count as one: 181 and 667 TFLOP/s, 96 GiB,
/// 2.9 TB/s; 1,024 GB/s of NeuronLink within a machine, taken to be both ways together.
Device neuroncore_v3x2() {
  constexpr double kGiB = 1073741824;
  return logical_core("neuroncore-v3x2", "AWS Trainium2, a logical core of 4", 4, {181, 667}, 2900,
                      96 * kGiB, 512);
}

/// "Trainium3 Architecture", cores as on Trainium2: 183 and 671 TFLOP/s, 144 GiB, 4.9 TB/s; 2,048
/// GiB/s of NeuronLink ("Trn3 Architecture").
Device neuroncore_v4x2() {
  constexpr double kGiB = 1073741824;
  return logical_core("neuroncore-v4x2", "AWS Trainium3, a logical core of 4", 4, {183, 671}, 4900,
                      144 * kGiB, 1024 * kGiB / kGiga);
}

/// As a100(), with the memory of the first ones.
Device a100_40gb() {
  return accelerator("a100-40gb", "NVIDIA A100 SXM4 40 GB", {19.5, 19.5, 156, 312}, 1555, 40e9,
                     300);
}

/// The data sheet "NVIDIA GH200 Grace Hopper Superchip", with 96 GB of HBM3.
Device gh200() {
  return accelerator("gh200", "NVIDIA GH200 96 GB", {67, 67, 494.7, 989.4}, 4000, 96e9, 450);
}

/// Half of the data sheet "AMD Instinct MI250X": products of float64 and float32 by matrix cores,
/// no TF32; the link to the other die of its package (OLCF, "Frontier User Guide").
Device mi250x_gcd() {
  return accelerator("mi250x-gcd", "AMD MI250X, a die of 2", {47.85, 47.85, 47.85, 191.5}, 1638.4,
                     64e9, 200);
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace

double Device::seconds(double flops, Precision precision, double bytes, double draws) const {
  const double computing = flops / (reached_peak * peak[static_cast<std::size_t>(precision)]);
  const double moving = bytes / (reached_bandwidth * memory_bandwidth);
  return launch_seconds + std::max({computing, moving, draws * draw_seconds});
}

const std::vector<Device>& devices() {
  static const std::vector<Device> all{core(),
                                       a100(),
                                       h100(),
                                       h200(),
                                       trainium(),
                                       neuroncore_v2(),
                                       neuroncore_v3x2(),
                                       neuroncore_v4x2(),
                                       a100_40gb(),
                                       gh200(),
                                       mi250x_gcd()};
  return all;
}

const Device* find_device(std::string_view name) {
  const auto found = std::find_if(devices().begin(), devices().end(),
                                  [&](const Device& device) { return device.name == name; });
  return found == devices().end() ? nullptr : &*found;
}

std::vector<std::string> device_names() {
  std::vector<std::string> names;
  for (const Device& device : devices()) names.push_back(device.name);
  return names;
}

std::vector<std::string> split_devices(std::string_view text, std::size_t count) {
  std::vector<std::string> names;
  if (trimmed(text).empty()) return names;
  for (;;) {
    const auto comma = text.find(',');
    names.emplace_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (names.size() == 1) names.assign(count, names.front());
  return names;
}

}  // namespace smp::base
