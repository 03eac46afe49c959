// base/end_signals.cpp: a handler of signals; only what is safe in one is called.
#include "base/end_signals.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>

#include "base/pulse.h"

namespace smp::base {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT};

std::mutex mutex;  // of `users` and of the handlers
int users = 0;
std::atomic<void (*)() noexcept> last_line{nullptr};

/// Paths of modules are not at hand here.
void name_rank(int rank, const Pulse& pulse) noexcept {
  char work[64] = "it ran no module yet";
  if (pulse.module != Pulse::kNothing) {
    std::snprintf(work, sizeof work, "the last that it ran was of microbatch %d (%s)",
                  pulse.microbatch.load(), pulse.backward ? "backward" : "forward");
  }
  char text[256];
  const int length =
      std::snprintf(text, sizeof text,
                    "smp: rank %d is gone: its process %d was killed (SIGKILL; `dmesg` tells "
                    "whether memory was short), or left without a word; %s\n",
                    rank, pulse.process.load(), work);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) return;
}

/// Each by the first that finds it. What ends in good order says so in its pulse.
void name_gone_ranks() noexcept {
  const int own = own_pulse().rank;
  for (int rank = 0; rank < ranks_on_board(); ++rank) {
    const auto* const pulse = pulse_of(rank);
    if (rank == own || pulse == nullptr || pulse->spoke || pulse->ends) continue;
    if (is_gone(*pulse) && accuser_of(rank) == own) name_rank(rank, *pulse);
  }
}

void say_and_end(int signal) {
  own_pulse().ends = true;
  name_gone_ranks();
  if (const auto print = last_line.load()) print();
  std::signal(signal, SIG_DFL);
  raise(signal);
}

/// @param from  the handler that must be there, or nothing changes
void exchange_handlers(void (*from)(int), void (*to)(int)) noexcept {
  for (const int signal : kSignals) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    const bool matches = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == from;
    if (matches) std::signal(signal, to);
  }
}

}  // namespace

EndSignals::EndSignals() {
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
