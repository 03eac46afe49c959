// api/session/rank_session.h: one rank of a session: its parts, in the order in which they start.
#pragma once

#include "api/rank/rank.h"
#include "api/rank/rank_parts.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replicas.h"
#include "api/state/session_state.h"
#include "base/forked_child.h"
#include "server/running/row_writes.h"

namespace smp {

/// Threads: the rank's.
class RankSession {
 public:
  /// Makes this the session of the calling fiber, and checks that all ranks agree.
  /// @throws as Rank::start()
  explicit RankSession(RankParts parts);
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  Rank& rank() noexcept { return rank_; }
  /// False in a forked child, which must not end its parent's session.
  bool is_own() const noexcept { return made_here_.is_here(); }
  SharedWarnings& warnings() noexcept { return state_.warnings(); }

 private:
  const base::MadeHere made_here_;
  const RankParts parts_;
  const SessionParts session_{rank_, state_, replicas_};
  const SessionParts::Scope scope_{session_};
  Rank rank_{parts_};
  SessionState state_;
  Replicas replicas_{rank_, state_};
  const server::SeesRowWrites sees_;  // of what runs between steps
};

}  // namespace smp
