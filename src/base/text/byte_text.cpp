// base/text/byte_text.cpp: see the header.
#include "base/text/byte_text.h"

#include <cstdio>

namespace smp::base {

std::string byte_text(std::int64_t bytes) {
  constexpr std::int64_t kMiB = 1 << 20, kGiB = 1 << 30;
  const bool small = bytes < kGiB;
  const auto value = static_cast<double>(bytes) / static_cast<double>(small ? kMiB : kGiB);
  char text[64];
  std::snprintf(text, sizeof text, "%.3g %s", value, small ? "MiB" : "GiB");
  return text;
}

}  // namespace smp::base
