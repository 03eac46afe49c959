// api/state/session_state.cpp: see the header.
#include "api/state/session_state.h"

#include <algorithm>
#include <memory>
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

void SessionState::begin_step() { call(before_steps_); }
void SessionState::end_step() {
  if (std::exchange(in_hooks_, true)) return;  // a step of a hook
  const std::shared_ptr<bool> over(&in_hooks_, [](bool* in) { *in = false; });
  call(after_steps_);
}

void SessionState::call(Followers& followers) {
  std::erase_if(followers, [](const auto& follow) { return follow.expired(); });
  const auto now = followers;  // one that is called may add others
  for (const auto& follow : now) {
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
