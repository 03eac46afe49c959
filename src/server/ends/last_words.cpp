// server/ends/last_words.cpp: a handler of std::terminate.
#include "server/ends/last_words.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "alive/common_errors.h"
#include "alive/pulse.h"
#include "alive/running_call.h"
#include "fiber/scheduler.h"
#include "server/protocol/exception_text.h"
#include "server/running/execution_scope.h"

namespace smp::server {
namespace {

/// The terminate handler, for an exception that nobody catches, in main() or in a module. The
/// latter happens when a fiber that is parked in a noexcept frame or a destructor must unwind
/// because its step failed elsewhere.
[[noreturn]] void explain_and_end() {
  const auto error = std::current_exception();
  const auto text = error ? text_of(error) : std::string("std::terminate was called");
  if (const auto* scope = ExecutionScope::current()) {
    char who[256] = "";
    scope->describe(who, sizeof who);
    std::fprintf(stderr,
                 "smp: %s: an exception could not leave a noexcept function or a destructor, so "
                 "the process ends; call no module from there (the exception: %s)\n",
                 who, text.c_str());
    base::own_pulse().spoke = true;
  } else {
    say_once(text, error && is_of_lost_peer(error));
  }
  std::fflush(nullptr);
  std::_Exit(1);
}

/// A thread-local object whose destructor ends the process, because exit() destroys thread-local
/// objects first. On a fiber that would never return: Boost's scheduler, which is destroyed after
/// this one, waits for all fibers to end.
struct ExitInModules {
  ExitInModules() {}  // declared, so that touching it makes it
  ~ExitInModules() {
    if (!running_call.running()) return;
    char who[512];
    running_call.describe(who, sizeof who);
    std::fprintf(stderr,
                 "smp: %s: the program called exit() inside a step; throw an exception instead, "
                 "which ends the step on every rank\n",
                 who);
    base::own_pulse().spoke = true;
    std::fflush(nullptr);
    std::_Exit(1);
  }
};

}  // namespace

void explain_uncaught_exceptions() noexcept { std::set_terminate(explain_and_end); }

void explain_faults() noexcept {
  fiber::Scheduler::set_description(
      [](char* text, std::size_t size) { running_call.describe(text, size); });
}

void explain_exit_in_modules() noexcept {
  thread_local const ExitInModules watch;
  static_cast<void>(watch);
}

}  // namespace smp::server
