// Ways to run a program that must give the same results in each: ranks, schedule, timing,
// placement.
#pragma once

#include <cstdint>
#include <functional>

#include "smp/smp.h"

namespace smp {

struct Way {
  int ranks = 2;
  const char* pipeline = "interleaved";
  std::uint64_t seed = 1;  ///< of the times that messages take
  int turn = 0;            ///< how far a test that turns its placement moves it on
};

/// Runs `rank_main` on every rank of `way`.
inline void run_in(const Way& way, int microbatches, const std::function<void()>& rank_main) {
  Config config;
  config.microbatches = microbatches;
  config.pipeline = way.pipeline;
  config.plan_cache = "off";
  run_local(way.ranks, rank_main, config, {.seed = way.seed});
}

}  // namespace smp
