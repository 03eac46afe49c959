// How much memory a test may take.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>

#include "base/memory/machine_memory.h"

namespace smp {

/// Bytes that the machine can give without swapping, and no more than this container may have; 0:
/// unknown.
inline std::uint64_t free_memory() {
  std::uint64_t free = 0;
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("MemAvailable:")) free = std::stoull(line.substr(13)) << 10;
  }
  return std::min(free, static_cast<std::uint64_t>(base::machine_memory()));
}

}  // namespace smp
