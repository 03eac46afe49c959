// Short tests of the whole library: two ranks in one process, and what a rank says when it refuses.
#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include "smp/smp.h"

namespace smp {

/// Runs `rank_main` on `ranks` ranks of one process.
inline void on_ranks(int ranks, const std::function<void()>& rank_main, int microbatches = 2,
                     std::uint64_t seed = 1) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  run_local(ranks, rank_main, config, {.seed = seed});
}

/// The text of the `Kind` that `run` throws; another kind, or none, fails the test.
template <class Kind>
std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const Kind& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

/// As refusal(), for a step: the rank where it happens throws `Kind`, the others RemoteError with
/// the same text in it.
template <class Kind>
std::string refused_step(int origin, const std::function<void()>& step) {
  return rank() == origin ? refusal<Kind>(step) : refusal<RemoteError>(step);
}

}  // namespace smp
