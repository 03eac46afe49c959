// api/session/rank_session.h: one rank of a session: its parts, in the order in which they start.
#pragma once

#include <memory>
#include <optional>
#include <utility>

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
  /// @param below  what the parts stand on
  /// @throws as Rank::start()
  explicit RankSession(RankParts parts, std::shared_ptr<const void> below = {});
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  /// Ends it before its owner does. @throws nothing; what asks it for its rank later does
  void end() noexcept { live_.reset(); }
  /// @throws UsageError  it has ended.
  Rank& rank();
  /// False in a forked child, which must not end its parent's session.
  bool is_own() const noexcept { return made_here_.is_here(); }
  SharedWarnings& warnings() noexcept { return live_->state.warnings(); }

 private:
  struct Live {
    explicit Live(RankParts made) : parts(std::move(made)) { rank.start(); }
    ~Live();

    const RankParts parts;
    const SessionParts session{rank, state, replicas};
    const SessionParts::Scope scope{session};
    Rank rank{parts};
    SessionState state;
    Replicas replicas{rank, state};
    const server::SeesRowWrites sees;  // of what runs between steps
  };

  const base::MadeHere made_here_;
  const int number_;  // of the rank
  const std::shared_ptr<const void> below_;
  std::optional<Live> live_;
};

}  // namespace smp
