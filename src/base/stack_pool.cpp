// base/stack_pool.cpp: the pool, and the signal handler that explains an overflow.
#include "base/stack_pool.h"

#include <unistd.h>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace smp::base {
namespace {

constexpr std::size_t kMostStacks = 16384;

/// Lowest addresses of all guard pages of the process; read by the signal handler.
std::array<std::atomic<std::uintptr_t>, kMostStacks> guard_pages{};
std::atomic<std::size_t> num_guard_pages{0};
DescribeFiber describe_fiber = nullptr;
struct sigaction previous_action {};
std::size_t page_bytes() noexcept { return boost::context::stack_traits::page_size(); }

bool in_guard_page(std::uintptr_t address) noexcept {
  const auto count = std::min(num_guard_pages.load(), kMostStacks);
  for (std::size_t i = 0; i < count; ++i) {
    const auto page = guard_pages[i].load();
    if (address >= page && address < page + page_bytes()) return true;
  }
  return false;
}

void report_overflow() noexcept {
  char who[256] = "";
  if (describe_fiber != nullptr) describe_fiber(who, sizeof who);
  char text[512];
  const int length = std::snprintf(text, sizeof text,
                                   "smp: %s: the fiber's stack overflowed; raise fiber_stack_bytes "
                                   "(--smp.fiber_stack_bytes), or use less stack in this module\n",
                                   who);
  if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) std::abort();
}

void on_fault(int signal, siginfo_t* info, void*) {
  if (in_guard_page(reinterpret_cast<std::uintptr_t>(info->si_addr))) report_overflow();
  // Returning runs the faulting instruction again, now under the previous handler.
  sigaction(signal, &previous_action, nullptr);
}

void remember_guard_page(const boost::context::stack_context& stack) noexcept {
  const auto top = reinterpret_cast<std::uintptr_t>(stack.sp);
  const auto slot = num_guard_pages.fetch_add(1);
  if (slot < kMostStacks) guard_pages[slot] = top - stack.size;
}

}  // namespace

struct StackPool::Shared {
  boost::context::protected_fixedsize_stack allocator;
  std::size_t stack_bytes;
  std::size_t in_use = 0;
  std::vector<boost::context::stack_context> free;

  explicit Shared(std::size_t bytes) : allocator(bytes), stack_bytes(bytes) { free.reserve(64); }
};

StackPool::StackPool(std::size_t stack_bytes) : shared_(std::make_shared<Shared>(stack_bytes)) {}

boost::context::stack_context StackPool::allocate() {
  auto& pool = *shared_;
  ++pool.in_use;
  if (pool.free.empty()) {
    auto stack = pool.allocator.allocate();
    remember_guard_page(stack);
    return stack;
  }
  auto stack = pool.free.back();
  pool.free.pop_back();
#if defined(__SANITIZE_ADDRESS__)
  // The frames of the stack's previous fiber never returned.
  __asan_unpoison_memory_region(static_cast<char*>(stack.sp) - stack.size + page_bytes(),
                                stack.size - page_bytes());
#endif
  return stack;
}

void StackPool::deallocate(boost::context::stack_context& stack) noexcept {
  --shared_->in_use;
  shared_->free.push_back(stack);
}

std::size_t StackPool::stack_bytes() const noexcept { return shared_->stack_bytes; }
std::size_t StackPool::in_use() const noexcept { return shared_->in_use; }

void install_overflow_report(DescribeFiber describe) {
#if defined(__SANITIZE_ADDRESS__)
  describe_fiber = describe;  // ASan reports overflows itself
#else
  static thread_local std::unique_ptr<char[]> alternate;
  if (alternate) return;
  const std::size_t bytes = 64 * 1024;
  alternate = std::make_unique<char[]>(bytes);
  stack_t stack{};
  stack.ss_sp = alternate.get();
  stack.ss_size = bytes;
  sigaltstack(&stack, nullptr);
  if (describe_fiber != nullptr) return;
  describe_fiber = describe;
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &previous_action);
#endif
}

}  // namespace smp::base
