// Short tests of the whole library: two ranks in one process, and what a rank says when it refuses.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "smp/smp.h"
#include "support/refusal.h"

namespace smp {

/// Runs `rank_main` on `ranks` ranks of one process.
inline void on_ranks(int ranks, const std::function<void()>& rank_main, int microbatches = 2,
                     std::uint64_t seed = 1) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  run_local(ranks, rank_main, config, {.seed = seed});
}

/// As refusal(), for a step: the rank where it happens throws `Kind`, the others RemoteError with
/// the same text in it.
template <class Kind>
[[nodiscard]] std::string refused_step(int origin, const std::function<void()>& step) {
  return rank() == origin ? refusal<Kind>(step) : refusal<RemoteError>(step);
}

}  // namespace smp
