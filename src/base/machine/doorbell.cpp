// base/machine/doorbell.cpp: a futex, which sleeps only if the word still says so.
#include "base/machine/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace smp::base {
namespace {

/// Calls futex() for a word that processes share, so without FUTEX_PRIVATE_FLAG.
void futex(std::uint32_t& word, int operation, std::uint32_t value,
           const timespec* timeout) noexcept {
  ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

bool Doorbell::wait(Nanoseconds most) noexcept {
  const timespec timeout{0, static_cast<long>(most)};
  futex(word_, FUTEX_WAIT, kArmed, &timeout);
  return state().exchange(kAwake, std::memory_order_acquire) != kArmed;
}

void Doorbell::wake() noexcept {
  if (state().exchange(kAwake, std::memory_order_release) == kArmed) {
    futex(word_, FUTEX_WAKE, 1, nullptr);
  }
}

}  // namespace smp::base
