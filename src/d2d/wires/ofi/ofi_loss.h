// d2d/wires/ofi/ofi_loss.h: whether an OfiWire has lost a peer, and how. Threads: one at a time.
#pragma once

#include <string>

#include "smp/rank.h"

namespace smp::d2d {

struct OfiTask;

/// What happened to the first peer that was lost.
class OfiLoss {
 public:
  static constexpr const char* kGone =
      ": that rank or the network between is gone; restart from a checkpoint";
  static constexpr const char* kDiffer = ": do all ranks run the same build?";

  /// Notes a loss. @param why  kGone or kDiffer
  void note(const std::string& what, const char* why);
  /// Notes that a task failed; nullptr: a write of another rank. A failure of one to a peer that
  /// has left is no loss.
  void note_failed(const OfiTask* task, const std::string& why);
  /// @throws PeerLostError  there was a loss; `rank` is this one.
  void require_none(GlobalRank rank) const;

 private:
  std::string text_;  // empty: none
};

}  // namespace smp::d2d
