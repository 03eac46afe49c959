// fiber/sim_clock.h: simulated time and seeded choice, for deterministic runs of many ranks
// (docs/design.md, Ranks in one process).
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "base/clock.h"

namespace smp::fiber {

/// Discrete-event clock, in nanoseconds from 0. Same seed, same trace: time only moves in
/// advance(). Threads: the scheduler's. Actions run on whatever fiber idles: they must not suspend.
class SimClock final : public base::Clock {
 public:
  explicit SimClock(std::uint64_t seed) : random_(seed) {}

  base::Nanoseconds now() const noexcept override { return now_; }
  /// Runs `action` at simulated time `when` (not before now); ties in the order of calls.
  void at(base::Nanoseconds when, std::function<void()> action);
  /// Jumps to the next event and runs it; false if there is none.
  bool advance();

  std::mt19937_64& random() noexcept { return random_; }
  /// True if ready fibers are drawn at random; else the first that became ready goes first.
  bool random_choice = true;

  /// A hash of everything traced; equal for equal runs.
  std::uint64_t trace_hash() const noexcept { return hash_; }
  void trace(std::uint64_t value) noexcept;

 private:
  struct Pending {
    base::Nanoseconds when;
    std::uint64_t order;
    std::function<void()> action;
    bool operator<(const Pending& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };
  base::Nanoseconds now_ = 0;
  std::uint64_t order_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
  std::mt19937_64 random_;
  std::priority_queue<Pending> pending_;
};

}  // namespace smp::fiber
