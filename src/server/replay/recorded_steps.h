// server/replay/recorded_steps.h: whether the next step may do without control messages, because
// the steps before ended like each other (docs/design.md, Static mode; paper §4.4). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/clock.h"

namespace smp::server {

/// Decides, on pp_rank 0, whether steps are replayed. What modules compute and whom they call may
/// differ from step to step: requests say that themselves. Only what is said beside them is left
/// out. Threads: the rank's.
class RecordedSteps {
 public:
  /// The number of steps recorded (paper §4.4: T).
  static constexpr int kSteps = 5;

  explicit RecordedSteps(bool wanted) noexcept : wanted_(wanted) {}

  /// True if the next step may be replayed.
  [[nodiscard]] bool may_replay() const noexcept { return wanted_ && alike_ >= kSteps; }
  /// The kind of a step, which decides for which later steps its order is good.
  enum class Kind : std::uint8_t {
    kOther,     ///< nothing: other ranks do not know how many microbatches it had
    kForward,   ///< it only evaluates
    kTraining,  ///< with backward: better, and good for evaluations as well
  };
  /// Notes that a step ended well, with all control messages, after `duration` (ns).
  /// @param news  true if some rank reported something that it had not reported before
  /// @return whether later steps of as many microbatches shall keep to its order: it is the fastest
  /// of its kind so far, and none of a better kind was seen
  bool ended(bool news, Kind kind, int microbatches, base::Nanoseconds duration) {
    if (news) forget();
    if (!news) ++alike_;
    if (!wanted_ || kind == Kind::kOther) return false;
    const Order step(kind, -duration);
    const auto [best, is_first] = best_.try_emplace(microbatches, step);
    if (!is_first && step <= best->second) return false;
    best->second = step;
    return true;
  }
  /// Forgets all steps, because one failed, or a rank had something to report after one that was
  /// replayed.
  void forget() noexcept {
    alike_ = 0;
    best_.clear();
  }

 private:
  /// The kind of a step, and its negative duration: greater is better.
  using Order = std::pair<Kind, base::Nanoseconds>;

  bool wanted_;
  std::int64_t alike_ = 0;     // steps in a row
  std::map<int, Order> best_;  // by microbatches
};

}  // namespace smp::server
