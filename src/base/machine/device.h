// base/machine/device.h: hardware that modules compute on, as a table: what a roofline needs to
// know of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace smp::base {

/// The precision in which a matrix product is computed. kTf32: of numbers of 32 bits tensor cores
/// use 19, if LibTorch is allowed to.
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
  double launch_seconds = 0;               ///< seconds that any operator takes beyond its work
  double draw_seconds = 0;                 ///< seconds for a random number; 0: only its bytes count
  std::int64_t memory_bytes = 0;           ///< 0: it uses the memory of its host
  double link_bandwidth = 0;  ///< bytes/s to another device of the node, one way; 0: by its host

  /// Returns the seconds that an operator takes: the longest of computing, moving bytes and drawing
  /// random numbers, plus the launch.
  /// @param draws  the number of random numbers
  [[nodiscard]] double seconds(double flops, Precision precision, double bytes,
                               double draws = 0) const;
};

/// Returns all known devices. The first is a core of a server, with which the others are compared.
[[nodiscard]] const std::vector<Device>& devices();
/// Returns the device of that name, or nullptr if there is none.
[[nodiscard]] const Device* find_device(std::string_view name);
[[nodiscard]] std::vector<std::string> device_names();

/// Splits a list such as "h100, h100, cpu" into names without spaces. One name alone stands for all
/// `count` devices. Empty text gives no names.
[[nodiscard]] std::vector<std::string> split_devices(std::string_view text, std::size_t count);

}  // namespace smp::base
