// fiber/sanitizer_switch.h: tells AddressSanitizer which stack comes next. Debian's Boost.Context
// is not instrumented, but pick_next() is the last code of ours before the jump, so both halves of
// the annotation may be given there, back to back. ThreadSanitizer needs nothing: all fibers of one
// OS thread are one thread to it, and it keeps no list of calls (cmake/smp_defaults.cmake).
#pragma once

#include <cstddef>

#include <boost/fiber/context.hpp>

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/common_interface_defs.h>
#include <boost/context/stack_traits.hpp>

#include <cstdint>
#endif

namespace smp::fiber {

#if defined(__SANITIZE_ADDRESS__)
/// `stack_bytes`: size of worker stacks (one size per process; Boost puts the context object at the
/// top of its stack).
inline void sanitizer_switch(boost::fibers::context* next, std::size_t stack_bytes) noexcept {
  constexpr std::size_t kPage = 4096;
  const void* low = nullptr;
  std::size_t size = 0;
  if (next->is_context(boost::fibers::type::worker_context)) {
    const auto top = (reinterpret_cast<std::uintptr_t>(next) + kPage - 1) & ~(kPage - 1);
    low = reinterpret_cast<const void*>(top - stack_bytes + kPage);
    size = stack_bytes - kPage;
  } else if (next->is_context(boost::fibers::type::main_context)) {
    pthread_attr_t attributes;
    void* stack = nullptr;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &size);
    pthread_attr_destroy(&attributes);
    low = stack;
  } else {  // the dispatcher, on whose stack polls throw and catch
    size = boost::context::stack_traits::default_size() - 2 * kPage;
    low = reinterpret_cast<const std::byte*>(next) - size;
  }
  void* save = nullptr;
  __sanitizer_start_switch_fiber(&save, low, size);
  __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
}
#else
inline void sanitizer_switch(boost::fibers::context*, std::size_t) noexcept {}
#endif

}  // namespace smp::fiber
