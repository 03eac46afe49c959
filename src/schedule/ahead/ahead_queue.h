// schedule/ahead/ahead_queue.h: which call a rank computes again while it would idle, before its
// backward asks. Pure: no clock, no tensors.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "schedule/schedule.h"

namespace smp::schedule {

/// A call that is computed again, by its place in the order in which backwards are expected:
/// microbatch after microbatch, and in each from the last call to the first.
struct AheadPlace {
  int turn = 0;                ///< of its microbatch among those of the rank
  std::int64_t from_last = 0;  ///< the later call of a microbatch has the lower one
  auto operator<=>(const AheadPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// What a rank may hold of calls that are computed again and not used up. Never those of a second
/// microbatch before the backward of the first has begun with all of its own: between two
/// backwards a rank has no time for more, so that they would take memory and gain nothing.
struct AheadCredit {
  bool one_call = true;    ///< one may be computed ahead while there is no other, whatever its size
  std::int64_t bytes = 0;  ///< more, of all of them together
  bool operator==(const AheadCredit&) const = default;
};

/// How many microbatches keep the ranks behind this one and itself busy, if the schedule admits
/// work as it comes; else all that the schedule lets it have.
[[nodiscard]] int enough_alive(const Schedule& schedule, int pp_rank, int pp_size,
                               int microbatches) noexcept;

/// When microbatches go back on a rank, and which one comes last.
struct AheadOrder {
  std::vector<int> turns;  ///< by microbatch, from 0
  int last = 0;            ///< the microbatch after whose forward no other comes
};
/// That of the rank's list; without one, and for what it does not name, that of the microbatches.
[[nodiscard]] AheadOrder order_of(const Schedule& schedule, int pp_rank, int microbatches);

/// The calls of one rank in a step: those that will be computed again, those that were computed
/// ahead, and those whose backward has begun.
class AheadQueue {
 public:
  AheadQueue() = default;
  /// @param last  the turn of the microbatch whose forward comes last
  /// @param enough  enough_alive(): before the rank has so many, or the last one has come, what
  ///                comes next may be a forward for which others wait
  AheadQueue(const AheadCredit& credit, int last, int enough)
      : credit_(credit), last_(last), enough_(enough) {}

  /// Adds a call whose forward has ended. @param bytes  that it holds once it is computed again
  void add(const AheadPlace& place, std::int64_t bytes);
  /// The call that may be computed now, if the rank has nothing else to do.
  [[nodiscard]] std::optional<AheadPlace> due() const;
  /// It is computed ahead.
  void take(const AheadPlace& place) { move(place, coming_, ahead_); }
  /// The backward of a call has begun. From now on it holds its bytes, whoever computed it.
  void began(const AheadPlace& place);
  /// Nobody needs the call any more. @return whether it was computed ahead for nothing
  bool ended(const AheadPlace& place);

  /// The number of calls that were computed ahead and whose backward has not begun.
  std::int64_t ahead() const noexcept { return static_cast<std::int64_t>(ahead_.size()); }
  /// The bytes of what is computed again and not used up.
  std::int64_t held() const noexcept { return held_; }

 private:
  using Calls = std::map<AheadPlace, std::int64_t>;  // bytes

  bool move(const AheadPlace& place, Calls& from, Calls& to);
  bool waits_for_one_before(int turn) const;

  AheadCredit credit_;
  int last_ = 0;  // turn
  int enough_ = 1;
  bool last_has_come_ = false;
  int begun_turn_ = 0;  // the last one of which a backward has begun
  Calls coming_, ahead_, begun_;
  std::map<int, int> pending_;  // calls by turn
  std::int64_t held_ = 0;
};

}  // namespace smp::schedule
