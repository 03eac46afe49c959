// alive/farewell.cpp: words that a handler of signals prints; only what is safe in one is called.
#include "alive/farewell.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

namespace smp::base {
namespace {

constexpr std::size_t kMost = 1024;

/// The texts and the count that the signal handler reads. They are static, since a Farewell object
/// may be destroyed meanwhile.
struct Words {
  char before[kMost] = "", after[kMost] = "";
  std::atomic<std::int64_t> count{0};
};
Words words;

void print_words() noexcept {
  char text[2 * kMost + 32];
  const int length = std::snprintf(text, sizeof text, "%s%lld%s\n", words.before,
                                   static_cast<long long>(words.count.load()), words.after);
  const auto bytes = std::min(static_cast<std::size_t>(length), sizeof text - 1);
  if (write(STDERR_FILENO, text, bytes) < 0) {  // nobody will read it; the end is the same
  }
}

void copy(char (&to)[kMost], const std::string& from) {
  std::snprintf(to, sizeof to, "%s", from.c_str());
}

}  // namespace

Farewell::Farewell(std::string before, std::string after) {
  set_last_line(nullptr);
  copy(words.before, before);
  copy(words.after, after);
  words.count = 0;
  set_last_line(print_words);
}

Farewell::~Farewell() { set_last_line(nullptr); }

void Farewell::set_count(std::int64_t count) noexcept { words.count = count; }

}  // namespace smp::base
