// api/session/rank_session.cpp: see the header.
#include "api/session/rank_session.h"

#include <utility>

#include "base/check.h"

namespace smp {

RankSession::RankSession(RankParts parts, std::shared_ptr<const void> below)
    : number_(parts.topology.rank()), below_(std::move(below)) {
  live_.emplace(std::move(parts));
}

RankSession::Live::~Live() {
  state.end();
  rank.leave();
}

Rank& RankSession::rank() {
  SMP_REQUIRE(
      live_.has_value(), "rank ", number_,
      ": the smp session has ended, because the program exits; use it, and models, optimizers and "
      "steps, before main() returns");
  return live_->rank;
}

}  // namespace smp
