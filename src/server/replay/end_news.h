// server/replay/end_news.h: which ranks learn by themselves that a microbatch has ended there, in
// steps that do without control messages under a schedule with windows (docs/design.md, Static
// mode). Pure.
#pragma once

#include <cstddef>
#include <utility>
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
        told_(asked_),
        records_(static_cast<std::size_t>(microbatches), 0) {}

  /// `owner` is asked for a backward that adds to gradients.
  void asked(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = true; }
  /// But did not begin it.
  void not_begun(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = false; }
  /// Some rank keeps a record for this one. A backward may take it before that is known.
  void record_kept(int microbatch) { ++records_.at(static_cast<std::size_t>(microbatch)); }
  void record_gone(int microbatch) { --records_.at(static_cast<std::size_t>(microbatch)); }

  /// Once the body of `microbatch` has ended: who may not know, and is to be told now. A record
  /// that is left may keep others, of whatever ranks.
  [[nodiscard]] std::vector<PpRank> to_tell(int microbatch) {
    ended_.push_back(microbatch);
    const bool all = tells_all_ || records_.at(static_cast<std::size_t>(microbatch)) != 0;
    return tell(microbatch, [&](std::size_t at) { return all || !asked_.at(at); });
  }
  /// From now on everyone is to be told of every end.
  void hide_nothing() noexcept { tells_all_ = true; }
  /// A rank may keep what this one cannot see: a graph that a module holds of a call of its own.
  /// @return microbatches that have ended, each with those who were not told
  [[nodiscard]] std::vector<std::pair<int, std::vector<PpRank>>> take_untold() {
    std::vector<std::pair<int, std::vector<PpRank>>> all;
    for (const int microbatch : ended_) {
      auto ranks = tell(microbatch, [](std::size_t) { return true; });
      if (!ranks.empty()) all.emplace_back(microbatch, std::move(ranks));
    }
    return all;
  }

 private:
  /// Those of whom `need` says so, and who were not told before.
  template <class Need>
  std::vector<PpRank> tell(int microbatch, const Need& need) {
    std::vector<PpRank> ranks;
    for (int rank = 1; rank < static_cast<int>(ranks_); ++rank) {
      const auto at = place(microbatch, PpRank(rank));
      if (told_.at(at) || !need(at)) continue;
      told_.at(at) = true;
      ranks.emplace_back(rank);
    }
    return ranks;
  }
  std::size_t place(int microbatch, PpRank rank) const noexcept {
    return static_cast<std::size_t>(microbatch) * ranks_ + rank.index();
  }

  const std::size_t ranks_;
  std::vector<bool> asked_, told_;  // by microbatch and rank
  std::vector<int> records_;        // by microbatch
  std::vector<int> ended_;          // microbatches
  bool tells_all_ = false;
};

}  // namespace smp::server
