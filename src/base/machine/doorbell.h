// base/machine/doorbell.h: how a thread that has nothing to do sleeps until another process has
// something for it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace smp::base {

/// A word of memory that processes share: one thread sleeps there, any other wakes it. The sleeper
/// arms the bell, looks once more for what others may have left, and only then waits; the others
/// leave something, then ring. So nothing is missed, and ringing for one who is awake costs a fence
/// and a read. Threads: arm(), disarm() and wait() the sleeper's; ring() any.
class Doorbell {
 public:
  /// @param word  must be 0 at first, and outlive this object
  explicit Doorbell(std::uint32_t& word) noexcept : word_(word) {}

  /// Arms the bell: from now on, ring() wakes the next wait().
  void arm() noexcept {
    state().store(kArmed, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void disarm() noexcept { state().store(kAwake, std::memory_order_relaxed); }
  /// After arm(), blocks until somebody rings or has done so since, at most `most` nanoseconds,
  /// which must be less than a second. Afterwards the bell is not armed. @return whether somebody
  /// rang
  bool wait(Nanoseconds most) noexcept;

  /// Wakes the sleeper, if there is one, for what was left before.
  void ring() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (state().load(std::memory_order_relaxed) == kArmed) wake();
  }

 private:
  static constexpr std::uint32_t kAwake = 0, kArmed = 1;

  std::atomic_ref<std::uint32_t> state() const noexcept {
    return std::atomic_ref<std::uint32_t>(word_);
  }
  void wake() noexcept;

  std::uint32_t& word_;
};

}  // namespace smp::base
