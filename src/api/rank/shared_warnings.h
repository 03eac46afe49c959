// api/rank/shared_warnings.h: what several ranks warn about alike is printed once, with the ranks
// that it is from: "ranks 0-3: text".
//
// Which way a warning goes depends on who knows of it, and when:
// - several ranks, each by itself: note(). It is printed where all ranks meet anyway, by the first
//   of them: at the start, when models are placed, when a run log begins. What no meeting came for
//   is printed by its own rank at the end of the session, so note() only what a meeting is sure to
//   come for; the rest is logged at once.
// - one rank, for all of them (the plan, the files of a run's log, static mode): that rank logs it
//   at once (base/log.h). It says "rank 0" because rank 0 says it; it is true of the job.
// - a rank that cannot count on another meeting, because something went wrong (a step that stalls,
//   a failure that the others could not be told of): at once and by itself, since the others may
//   never come.
#pragma once

#include <string>
#include <vector>

#include "smp/rank.h"

namespace smp {

namespace d2d {
class Communicator;
}

/// Warnings that several ranks may have noted alike. Threads: the rank's.
class SharedWarnings {
 public:
  SharedWarnings() = default;
  /// Prints the warnings that are left.
  ~SharedWarnings();
  SharedWarnings(const SharedWarnings&) = delete;
  SharedWarnings& operator=(const SharedWarnings&) = delete;

  /// Notes a warning.
  /// @param text  without the rank, nor what only this rank has, such as its own file: two ranks
  ///              mean the same if their texts are equal
  void note(std::string text);
  /// Prints what `ranks` have noted so far, on the first of them. Collective; one exchange.
  void meet(const d2d::Communicator& ranks);

 private:
  std::vector<std::string> noted_;
};

/// Returns the lines for what each of `ranks` noted, in the order in which it was noted first. A
/// text that a rank noted twice is there once; a rank that is alone is not named.
std::vector<std::string> merged_warnings(const std::vector<GlobalRank>& ranks,
                                         const std::vector<std::vector<std::string>>& noted);

/// Returns "rank 2", "ranks 0-3", "ranks 0, 2, 5-7". @param ranks  ascending, at least one
std::string names_of(const std::vector<GlobalRank>& ranks);

}  // namespace smp
