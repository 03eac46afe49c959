// server/step/module_visits.h: how far microbatches have come in modules that keep state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace smp::server {

/// Of one step on one rank. Threads: the rank's.
class ModuleVisits {
 public:
  /// Notes that `microbatch` enters module number `module`, and returns the highest microbatch
  /// that did so far. A higher one than its own: it comes too late.
  int enter(int module, int microbatch) {
    const auto index = static_cast<std::size_t>(module);
    if (index >= highest_.size()) highest_.resize(index + 1, -1);
    highest_[index] = std::max(highest_[index], microbatch);
    return highest_[index];
  }

 private:
  std::vector<int> highest_;  // by module; -1: none
};

}  // namespace smp::server
