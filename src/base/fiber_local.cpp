// base/fiber_local.cpp: slots are given out in the order in which static objects are made.
#include "base/fiber_local.h"

#include <cstdio>
#include <cstdlib>

namespace smp::base {

FiberSlots*& current_fiber_slots() noexcept {
  static thread_local FiberSlots of_thread{};
  static thread_local FiberSlots* current = &of_thread;
  return current;
}

std::size_t detail::take_fiber_slot() {
  static std::size_t taken = 0;
  if (taken == std::tuple_size_v<FiberSlots>) {
    std::fprintf(stderr, "smp internal error (please report): more than %zu FiberLocals\n", taken);
    std::abort();
  }
  return taken++;
}

}  // namespace smp::base
