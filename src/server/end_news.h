// server/end_news.h: which ranks learn by themselves that a microbatch has ended there, in steps
// that do without control messages under a schedule with windows (docs/design.md, Static mode).
// Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "smp/rank.h"

namespace smp::server {

/// Of one step, on pp_rank 0. A rank's window moves on when a microbatch has ended there: its
/// forward is done, and no record of it is kept. A backward request says the former, and takes the
/// record. Threads: the rank's.
class EndNews {
 public:
  EndNews(int microbatches, int ranks)
      : ranks_(static_cast<std::size_t>(ranks)),
        asked_(static_cast<std::size_t>(microbatches) * ranks_, false),
        records_(static_cast<std::size_t>(microbatches), 0) {}

  /// `owner` is asked for a backward that adds to gradients.
  void asked(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = true; }
  /// But did not begin it.
  void not_begun(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = false; }
  /// Some rank keeps a record for this one. A backward may take it before that is known.
  void record_kept(int microbatch) { ++records_.at(static_cast<std::size_t>(microbatch)); }
  void record_gone(int microbatch) { --records_.at(static_cast<std::size_t>(microbatch)); }

  /// Once the body of `microbatch` has ended: whether `rank` may not know. A record that is left
  /// may keep others, of whatever ranks.
  [[nodiscard]] bool must_be_told(int microbatch, PpRank rank) const {
    return records_.at(static_cast<std::size_t>(microbatch)) != 0 ||
           !asked_.at(place(microbatch, rank));
  }

 private:
  std::size_t place(int microbatch, PpRank rank) const noexcept {
    return static_cast<std::size_t>(microbatch) * ranks_ + rank.index();
  }

  const std::size_t ranks_;
  std::vector<bool> asked_;   // by microbatch and rank
  std::vector<int> records_;  // by microbatch
};

}  // namespace smp::server
