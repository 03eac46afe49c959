// alive/exit_watch.cpp: a handler of exit() that sees the exit code (on_exit(3)).
#include "alive/exit_watch.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>

#include "alive/common_errors.h"
#include "alive/pulse.h"
#include "base/check.h"

namespace smp::base {
namespace {

std::atomic<bool> failed{false};
std::atomic<int> sessions{0};

void say_exit(int code) noexcept {
  if (own_pulse().spoke) return;
  server::say_once(
      concat("the program called exit(", code,
             ") before the end of its session, so that other ranks would wait for this "
             "one in vain; return from main(), or throw an exception"));
}

/// exit() may be called in its handlers: those that are left go on, and the last code counts, as
/// the C library documents for itself.
void look_at_exit(int code, void* process) {
  if (reinterpret_cast<std::intptr_t>(process) != ::getpid()) return;  // a forked child
  if (sessions.exchange(0) > 0) {
    failed = true;
    say_exit(code);
  }
  if (failed.exchange(false) && (code & 0xff) == 0) std::exit(EXIT_FAILURE);
}

void watch_exit() noexcept {
  static const int once =
      ::on_exit(look_at_exit, reinterpret_cast<void*>(static_cast<std::intptr_t>(::getpid())));
  static_cast<void>(once);
}

}  // namespace

void note_failure() noexcept {
  watch_exit();
  failed = true;
}

void forgive_failure() noexcept { failed = false; }

ExitWatch::ExitWatch() noexcept : exceptions_at_start_(std::uncaught_exceptions()) {
  watch_exit();
  ++sessions;
}

ExitWatch::~ExitWatch() {
  --sessions;
  if (std::uncaught_exceptions() > exceptions_at_start_) note_failure();
}

}  // namespace smp::base
