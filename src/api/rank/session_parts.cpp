// api/rank/session_parts.cpp: see the header.
#include "api/rank/session_parts.h"

#include <atomic>

#include "base/check.h"

namespace smp {
namespace {

const base::FiberLocal<const SessionParts>& current_session() {
  static const base::FiberLocal<const SessionParts> session;
  return session;
}

/// Of this process, at this time.
std::atomic<int>& sessions() {
  static std::atomic<int> count{0};
  return count;
}
std::atomic<int>& ended_sessions() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace

SessionParts::Scope::Scope(const SessionParts& session) : current_(current_session(), &session) {}

SessionParts::Scope::Counted::Counted() noexcept { ++sessions(); }
SessionParts::Scope::Counted::~Counted() {
  --sessions();
  ++ended_sessions();
}

const SessionParts* SessionParts::find_current() noexcept { return current_session().get(); }

const SessionParts& SessionParts::current() {
  const auto* session = find_current();
  SMP_REQUIRE(session != nullptr || sessions() == 0,
              "this thread is none of a rank's: everything of smp is called on the thread that "
              "called smp::init, and not on one of std::thread or std::async");
  SMP_REQUIRE(session != nullptr, ended_sessions() == 0
                                      ? "no smp session runs; start with `auto session = "
                                        "smp::init(argc, argv);`"
                                      : "the smp session has ended; keep what smp::init returned "
                                        "alive (`auto session = ...`) until the last use of "
                                        "models, optimizers and steps");
  return *session;
}

}  // namespace smp
