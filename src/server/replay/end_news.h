// server/replay/end_news.h: which ranks learn by themselves that a microbatch has ended there, in
// steps that do without control messages under a schedule with windows (docs/design.md, Static
// mode). Pure.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "smp/rank.h"

namespace smp::server {

/// The bookkeeping of one step, on pp_rank 0. A rank's window moves on when a microbatch has ended
/// there: its forward is done, and no record of it is kept. A backward request says the former, and
/// takes the record. Threads: the rank's.
class EndNews {
 public:
  EndNews(int microbatches, int ranks)
      : ranks_(static_cast<std::size_t>(ranks)),
        asked_(static_cast<std::size_t>(microbatches) * ranks_, false),
        told_(asked_),
        records_(static_cast<std::size_t>(microbatches), 0) {}

  /// Notes that `owner` was asked for a backward that adds to gradients.
  void asked(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = true; }
  /// Notes that `owner` did not begin the backward that it was asked for.
  void not_begun(int microbatch, PpRank owner) { asked_.at(place(microbatch, owner)) = false; }
  /// Notes that some rank keeps a record of `microbatch`. A backward may take it before this is
  /// known, so record_gone() may be called first.
  void record_kept(int microbatch) { ++records_.at(static_cast<std::size_t>(microbatch)); }
  void record_gone(int microbatch) { --records_.at(static_cast<std::size_t>(microbatch)); }

  /// Returns the ranks that may not know that `microbatch` has ended and must be told now. Called
  /// once, when its body has ended. If a record is left, all are told, since it may keep others on
  /// any rank.
  [[nodiscard]] std::vector<PpRank> to_tell(int microbatch) {
    ended_.push_back(microbatch);
    const bool all = tells_all_ || records_.at(static_cast<std::size_t>(microbatch)) != 0;
    return tell(microbatch, [&](std::size_t at) { return all || !asked_.at(at); });
  }
  /// Makes to_tell() return every rank from now on.
  void hide_nothing() noexcept { tells_all_ = true; }
  /// Takes all ranks that were not told of a microbatch that has ended: a rank may keep a record
  /// that pp_rank 0 cannot see, because a module there holds the graph of a call of its own.
  /// @return microbatches that have ended, each with the ranks that were not told
  [[nodiscard]] std::vector<std::pair<int, std::vector<PpRank>>> take_untold() {
    std::vector<std::pair<int, std::vector<PpRank>>> all;
    for (const int microbatch : ended_) {
      auto ranks = tell(microbatch, [](std::size_t) { return true; });
      if (!ranks.empty()) all.emplace_back(microbatch, std::move(ranks));
    }
    return all;
  }

 private:
  /// Returns, and marks as told, the ranks for which `need` is true and that were not told before.
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
