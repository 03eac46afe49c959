// schedule/ahead/ahead_queue.h: which call a rank computes again while it would idle, before its
// backward asks. Pure: no clock, no tensors.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>

#include "schedule/schedule.h"

namespace smp::schedule {

/// A call that is computed again, by its place in the order in which backwards are expected:
/// microbatch after microbatch, and in each from the last call to the first.
struct AheadPlace {
  int microbatch = 0;
  std::int64_t from_last = 0;  ///< the later call of a microbatch has the lower one
  auto operator<=>(const AheadPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// What a rank may hold of calls that are computed again and not used up.
struct AheadCredit {
  bool one_call = true;    ///< one may be computed ahead while there is no other, whatever its size
  std::int64_t bytes = 0;  ///< more, of all of them together
  bool operator==(const AheadCredit&) const = default;
};

/// How many microbatches keep the ranks behind this one and itself busy, if the schedule admits
/// work as it comes; else all that the schedule lets it have.
[[nodiscard]] int enough_alive(const Schedule& schedule, int pp_rank, int pp_size,
                               int microbatches) noexcept;

/// The calls of one rank in a step: those that will be computed again, those that were computed
/// ahead, and those whose backward has begun.
class AheadQueue {
 public:
  AheadQueue() = default;
  /// @param microbatches  of the step
  /// @param enough  enough_alive(): before the rank has so many, or the last one, what comes next
  ///                may be a forward for which others wait
  AheadQueue(const AheadCredit& credit, int microbatches, int enough)
      : credit_(credit), last_(microbatches - 1), enough_(enough) {}

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

  AheadCredit credit_;
  int last_ = 0;  // microbatch
  int enough_ = 1;
  Calls coming_, ahead_, begun_;
  std::map<int, int> pending_;  // calls by microbatch
  std::int64_t held_ = 0;
};

}  // namespace smp::schedule
