// api/state/session_state.cpp: see the header.
#include "api/state/session_state.h"

#include "api/rank/session_parts.h"

namespace smp {

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

}  // namespace smp
