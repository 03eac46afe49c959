// base/farewell.cpp: a handler of signals; only what is safe in one is called.
#include "base/farewell.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>

namespace smp::base {
namespace {

constexpr std::size_t kMost = 1024;

/// What the handler reads. Not of the object, which may be on its way out.
struct Words {
  char before[kMost] = "", after[kMost] = "";
  std::atomic<std::int64_t> count{0};
  std::atomic<bool> set{false};
};
Words words;

constexpr std::array kSignals{SIGTERM, SIGINT};

void say_and_end(int signal) {
  if (words.set) {
    char text[2 * kMost + 32];
    const int length = std::snprintf(text, sizeof text, "%s%lld%s\n", words.before,
                                     static_cast<long long>(words.count.load()), words.after);
    const auto bytes = std::min(static_cast<std::size_t>(length), sizeof text - 1);
    if (write(STDERR_FILENO, text, bytes) < 0) _exit(1);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

/// @param from  the handler that must be there, or nothing changes
void exchange_handlers(void (*from)(int), void (*to)(int)) {
  for (const int signal : kSignals) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    const bool matches = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == from;
    if (matches) std::signal(signal, to);
  }
}

void copy(char (&to)[kMost], const std::string& from) {
  std::snprintf(to, sizeof to, "%s", from.c_str());
}

}  // namespace

Farewell::Farewell(std::string before, std::string after) {
  words.set = false;
  copy(words.before, before);
  copy(words.after, after);
  words.count = 0;
  words.set = true;
  exchange_handlers(SIG_DFL, say_and_end);
}

Farewell::~Farewell() {
  words.set = false;
  exchange_handlers(say_and_end, SIG_DFL);
}

void Farewell::set_count(std::int64_t count) noexcept { words.count = count; }

}  // namespace smp::base
