// Damaged files: how many a test makes for a reader, and what is wrong with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <string>

namespace smp {

/// SMP_DAMAGED_FILES, if it is set.
inline int damaged_files(int usual) {
  const char* wanted = std::getenv("SMP_DAMAGED_FILES");
  return wanted == nullptr ? usual : std::atoi(wanted);
}

/// Returns `bytes`, damaged in so many places: bits and bytes changed, some lost, added or copied.
inline std::string damaged(std::string bytes, std::mt19937& random, int places) {
  const auto below = [&](std::size_t count) { return random() % std::max<std::size_t>(count, 1); };
  for (int i = 0; i < places; ++i) {
    const auto at = below(bytes.size());
    const auto count = 1 + below(16);
    switch (below(7)) {
      case 0:
        bytes[at] ^= static_cast<char>(1u << below(8));
        break;
      case 1:
        bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.insert(at, count, static_cast<char>(random()));
        break;
      case 4:
        bytes.erase(at, count);
        break;
      case 5:
        bytes += bytes.substr(at, count);
        break;
      default:
        bytes.replace(at, count, bytes.substr(below(bytes.size()), count));
        break;
    }
    if (bytes.empty()) bytes = "x";
  }
  return bytes;
}

}  // namespace smp
