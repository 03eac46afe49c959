// schedule/yield_policy.h: when a fiber that is about to compute gives way, how long it then waits
// for answers that are due, and who goes first. The runtime and the simulator run this very code.
// Pure: the caller tells the time. Paper §4.2.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace smp::schedule {

/// The time of computing without a look for answers beyond which others are held up.
inline constexpr base::Nanoseconds kLongWork = 100 * base::kMicrosecond;

/// Returns how long a turn may wait for answers that are due, if the last turn was `since_last`
/// ago: at most 1/50 of that time. 0: not at all, since a very short wait is not worth its cost.
[[nodiscard]] constexpr base::Nanoseconds patience(base::Nanoseconds since_last) noexcept {
  constexpr base::Nanoseconds kShare = 50;
  constexpr base::Nanoseconds kLeast = 20 * base::kMicrosecond;
  constexpr base::Nanoseconds kMost = 500 * base::kMicrosecond;
  const auto share = std::min(since_last / kShare, kMost);
  return share < kLeast ? 0 : share;
}

// ---- one key orders the ready fibers of a rank: smaller first ----------------------------------

/// The offset of fibers that pass an answer on: far below every priority of a schedule, which is at
/// least 0.
inline constexpr std::int64_t kPassingOn = -(std::int64_t{1} << 62);

/// True if a fiber of this priority passes an answer on.
[[nodiscard]] constexpr bool is_passing_on(std::int64_t priority) noexcept {
  return priority < kPassingOn / 2;
}
/// Returns the priority of a fiber that got a peer's answer, or just began, and has not computed
/// since: it runs before all that compute, because another rank may have nothing to do until it has
/// passed the answer on. Among such fibers the given priority decides. No change if it passes on
/// already.
[[nodiscard]] constexpr std::int64_t passing_on(std::int64_t priority) noexcept {
  return is_passing_on(priority) ? priority : priority + kPassingOn;
}
/// Returns the priority of the fiber once it computes, which is that before passing_on(). No change
/// if it does not pass on.
[[nodiscard]] constexpr std::int64_t without_passing_on(std::int64_t priority) noexcept {
  return is_passing_on(priority) ? priority - kPassingOn : priority;
}

/// The numbers of turns that limit patience: after kWaitsInVain turns in which nobody came, only
/// one of kTurnsToProbe is patient. Where no answer goes before what is due, as in a chain of
/// promised outputs, patience only costs.
inline constexpr int kWaitsInVain = 3;
inline constexpr int kTurnsToProbe = 16;

// ---- the policy --------------------------------------------------------------------------------

/// The rule of one thread for fibers that are about to compute: they may have to let others run
/// first, since what comes too late has to wait until the computation is over. Used from that
/// thread.
class YieldPolicy {
 public:
  /// @param patient  true if a turn may wait for answers; of no use if messages take no time
  explicit YieldPolicy(bool patient = true) noexcept : patient_(patient) {}

  struct Turn {
    bool due = false;                ///< give way to the ready fibers that go before
    base::Nanoseconds patience = 0;  ///< and go on giving way for so long
  };

  /// Decides whether a fiber that is about to compute must give way first.
  /// @param passes_answer_on  its priority is one that passes on
  /// @param awaits_answers    some fiber of the thread waits for a peer
  /// @param measured_time     false in simulated time of tests: the order must not depend on how
  ///                          long computing takes, so only passing an answer on makes a turn due
  [[nodiscard]] Turn begin(bool passes_answer_on, base::Nanoseconds now, bool awaits_answers,
                           bool measured_time) noexcept;

  /// The result of a turn: it was not patient, nobody came, or somebody came who went before the
  /// fiber.
  enum class Waited { kNot, kInVain, kPaidOff };
  /// Tells that the turn is over: the fiber computes from `now` on. Only after a turn that was due.
  void end(base::Nanoseconds now, Waited waited = Waited::kNot) noexcept;

 private:
  base::Nanoseconds patience_after(base::Nanoseconds since_last) noexcept;

  bool patient_;
  base::Nanoseconds last_turn_ = 0;
  int waits_in_vain_ = 0;  // one after the other
  int turns_without_ = 0;  // patience, since the last with it
};

}  // namespace smp::schedule
