// server/last_words.cpp: a handler of std::terminate.
#include "server/last_words.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "server/exception_text.h"
#include "server/execution_scope.h"

namespace smp::server {
namespace {

/// An exception nobody catches, in main() or in a module. The latter happens when a fiber that is
/// parked in a noexcept frame or a destructor must unwind because its step failed elsewhere.
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
  } else {
    std::fprintf(stderr, "smp: uncaught: %s\n", text.c_str());
  }
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace

void explain_uncaught_exceptions() noexcept { std::set_terminate(explain_and_end); }

}  // namespace smp::server
