// alive/end_signals.cpp: a handler of signals; only what is safe in one is called.
#include "alive/end_signals.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <csignal>
#include <mutex>

#include "alive/gone_ranks.h"
#include "alive/pulse.h"

namespace smp::base {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT};

std::mutex mutex;  // of `users` and of the handlers
int users = 0;
std::atomic<void (*)() noexcept> last_line{nullptr};

void say_and_end(int signal) {
  own_pulse().ends = true;
  name_gone_ranks();
  if (const auto print = last_line.load()) print();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

/// Replaces the handler of each end signal by `to`.
/// @param from  the handler that must be there; else that signal's handler stays
void exchange_handlers(void (*from)(int), void (*to)(int)) noexcept {
  for (const int signal : kSignals) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    const bool matches = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == from;
    if (matches) std::signal(signal, to);
  }
}

/// A forked child ends as one of any program does: the words are its parent's.
void end_in_silence() noexcept { exchange_handlers(say_and_end, SIG_DFL); }

}  // namespace

EndSignals::EndSignals() {
  static const int once = ::pthread_atfork(nullptr, nullptr, end_in_silence);
  static_cast<void>(once);
  const std::lock_guard lock(mutex);
  own_pulse().ends = false;
  exchange_handlers(SIG_DFL, say_and_end);
  ++users;
}

EndSignals::~EndSignals() {
  const std::lock_guard lock(mutex);
  if (--users > 0) return;
  own_pulse().ends = true;
  exchange_handlers(say_and_end, SIG_DFL);
}

void set_last_line(void (*print)() noexcept) noexcept { last_line = print; }

}  // namespace smp::base
