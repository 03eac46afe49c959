// partition/text/short_text.cpp: three significant digits are enough to compare stages.
#include "partition/text/short_text.h"

#include <fmt/format.h>

namespace smp::partitioning {

std::string short_count(std::int64_t count) {
  const double value = static_cast<double>(count);
  if (count < 1000) return fmt::format("{:.0f}", value);
  if (count < 999'950) return fmt::format("{:.1f} K", value / 1e3);
  if (count < 999'950'000) return fmt::format("{:.1f} M", value / 1e6);
  return fmt::format("{:.1f} G", value / 1e9);
}

std::string short_bytes(std::int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes == 0) return "0";
  if (bytes < 1000) return fmt::format("{:.0f} B", value);
  if (bytes < 1000 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
  if (bytes < 1000LL * 1024 * 1024) return fmt::format("{:.1f} MiB", value / (1 << 20));
  return fmt::format("{:.1f} GiB", value / (1 << 30));
}

std::string short_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

}  // namespace smp::partitioning
