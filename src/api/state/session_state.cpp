// api/state/session_state.cpp: see the header.
#include "api/state/session_state.h"

#include <algorithm>
#include <utility>

#include "api/rank/session_parts.h"

namespace smp {
namespace {

/// Maps whose keys differ from step to step make a kind of each.
constexpr std::size_t kMostSplits = 32;

}  // namespace

SessionState& SessionState::current() { return SessionParts::current().state; }

SessionState* SessionState::find_current() noexcept {
  const auto* session = SessionParts::find_current();
  return session == nullptr ? nullptr : &session->state;
}

void SessionState::begin_step() {
  std::erase_if(before_steps_, [](const auto& follow) { return follow.expired(); });
  for (const auto& follow : before_steps_) {
    if (const auto alive = follow.lock()) (*alive)();
  }
}

bool SessionState::add_split(schedule::SplitStep step) {
  const bool known = std::any_of(splits_.begin(), splits_.end(), [&](const auto& other) {
    return schedule::split_alike(step, other);
  });
  if (known || splits_.size() == kMostSplits) return false;
  splits_.push_back(std::move(step));
  return true;
}

}  // namespace smp
