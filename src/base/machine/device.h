// base/machine/device.h: hardware that modules compute on, as a table: what a roofline needs to
// know of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

/// In what a matrix product is computed. kTf32: numbers of 32 bits of which tensor cores take 19,
/// if LibTorch is allowed to.
enum class Precision : std::uint8_t { kFloat64, kFloat32, kTf32, kHalf };
inline constexpr std::size_t kPrecisions = 4;

/// One device as a rank computes on it: a core, or a whole chip. Peaks are the vendor's; what is
/// reached of them, and what an operator costs at least, is assumed (device.cpp).
struct Device {
  std::string name;                        ///< as settings name it: "h100"
  std::string about;                       ///< "NVIDIA H100 SXM5 80 GB"
  std::array<double, kPrecisions> peak{};  ///< FLOP/s of dense matrix products
  double memory_bandwidth = 0;             ///< bytes/s, at its peak
  double reached_peak = 1;                 ///< share of `peak` that operators reach
  double reached_bandwidth = 1;            ///< share of `memory_bandwidth`
  double launch_seconds = 0;               ///< that any operator takes beyond its work
  double draw_seconds = 0;                 ///< of a random number; 0: that of its bytes
  std::int64_t memory_bytes = 0;           ///< 0: that of its host
  double link_bandwidth = 0;  ///< bytes/s to another device of the node, one way; 0: by its host

  /// What an operator takes: the longest of computing, moving bytes and drawing, and the launch.
  /// @param draws  random numbers
  [[nodiscard]] double seconds(double flops, Precision precision, double bytes,
                               double draws = 0) const;
};

/// All that are known. The first is a core of a server, on which everything else can be compared.
[[nodiscard]] const std::vector<Device>& devices();
/// nullptr: there is no such device.
[[nodiscard]] const Device* find_device(std::string_view name);
[[nodiscard]] std::vector<std::string> device_names();

/// "h100, h100, cpu" as names, spaces dropped; one name stands for all `count` of them. Empty text
/// gives none.
[[nodiscard]] std::vector<std::string> split_devices(std::string_view text, std::size_t count);

}  // namespace smp::base
