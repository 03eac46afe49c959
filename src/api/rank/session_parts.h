// api/rank/session_parts.h: the session that the running fiber belongs to, the only global state of
// the library.
#pragma once

#include "base/fiber_local.h"

namespace smp {

class Rank;
class Replicas;
class SessionState;

/// What one rank has of a session. Threads: the rank's.
struct SessionParts {
  Rank& rank;
  SessionState& state;
  Replicas& replicas;

  /// Of the running fiber; nullptr: there is none.
  static const SessionParts* find_current() noexcept;
  /// @throws UsageError  there is none; what to do.
  static const SessionParts& current();

  class Scope;
};

/// While it lives, a session runs on the rank that made it.
class SessionParts::Scope {
 public:
  explicit Scope(const SessionParts& session);

 private:
  /// Counts the sessions of this process, for messages.
  struct Counted {
    Counted() noexcept;
    ~Counted();
  };
  Counted counted_;
  base::FiberLocalScope<const SessionParts> current_;
};

}  // namespace smp
