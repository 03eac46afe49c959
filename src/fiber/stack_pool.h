// fiber/stack_pool.h: guarded fiber stacks, made once and used again (a fresh one costs 12 us).
#pragma once

#include <boost/context/stack_context.hpp>
#include <boost/context/stack_traits.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace smp::fiber {

/// A StackAllocator for Boost.Fiber. Copies share one pool. Below each stack lies a guard;
/// running into it ends the process with a message that names the module and the remedy
/// (fault_report.h). Stacks are kept until the process ends. Threads: the scheduler's.
class StackPool {
 public:
  using traits_type = boost::context::stack_traits;

  /// @param stack_bytes  of each stack, rounded up to pages; the guard comes on top
  explicit StackPool(std::size_t stack_bytes);
  /// @throws std::bad_alloc  the kernel gives no more memory, or no more mappings.
  boost::context::stack_context allocate();
  void deallocate(boost::context::stack_context& stack) noexcept;

  std::size_t stack_bytes() const noexcept;
  /// The number of stacks handed out and not returned.
  std::size_t in_use() const noexcept;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

/// True if `address` is in the guard of a stack of this process. Async-signal-safe.
bool in_stack_guard(std::uintptr_t address) noexcept;

}  // namespace smp::fiber
