// api/session/rank_session.cpp: see the header.
#include "api/session/rank_session.h"

#include <utility>

namespace smp {

RankSession::RankSession(RankParts parts) : parts_(std::move(parts)) { rank_.start(); }

RankSession::~RankSession() {
  state_.end();
  rank_.leave();
}

}  // namespace smp
