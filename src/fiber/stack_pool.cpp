// fiber/stack_pool.cpp: the pool, and where the guards of all stacks are.
#include "fiber/stack_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace smp::fiber {
namespace {

constexpr std::size_t kMostStacks = 16384;
/// The bytes of the guard below each stack: as much as a frame may have that works on a thread's
/// usual stack. A frame larger than the guard would step over it into other memory. Only addresses
/// are reserved, no memory.
constexpr std::size_t kGuardBytes = std::size_t{8} << 20;

/// The lowest addresses of all guards of the process; read by the signal handler.
std::array<std::atomic<std::uintptr_t>, kMostStacks> guards{};
std::atomic<std::size_t> num_guards{0};

boost::context::stack_context map_stack(std::size_t bytes) {
  const std::size_t page = boost::context::stack_traits::page_size();
  const std::size_t size = (bytes + page - 1) / page * page + kGuardBytes;
  void* const low = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (low == MAP_FAILED) throw std::bad_alloc();
  if (mprotect(low, kGuardBytes, PROT_NONE) != 0) {
    munmap(low, size);
    throw std::bad_alloc();
  }
  const auto slot = num_guards.fetch_add(1);
  if (slot < kMostStacks) guards[slot] = reinterpret_cast<std::uintptr_t>(low);
  boost::context::stack_context stack;
  stack.size = size;
  stack.sp = static_cast<char*>(low) + size;
  return stack;
}

}  // namespace

struct StackPool::Shared {
  std::size_t stack_bytes;
  std::size_t in_use = 0;
  std::vector<boost::context::stack_context> free;

  explicit Shared(std::size_t bytes) : stack_bytes(bytes) { free.reserve(64); }
};

StackPool::StackPool(std::size_t stack_bytes) : shared_(std::make_shared<Shared>(stack_bytes)) {}

boost::context::stack_context StackPool::allocate() {
  auto& pool = *shared_;
  if (pool.free.empty()) {
    const auto stack = map_stack(pool.stack_bytes);
    ++pool.in_use;
    return stack;
  }
  ++pool.in_use;
  auto stack = pool.free.back();
  pool.free.pop_back();
#if defined(__SANITIZE_ADDRESS__)
  // The frames of the stack's previous fiber never returned.
  __asan_unpoison_memory_region(static_cast<char*>(stack.sp) - stack.size + kGuardBytes,
                                stack.size - kGuardBytes);
#endif
  return stack;
}

void StackPool::deallocate(boost::context::stack_context& stack) noexcept {
  --shared_->in_use;
  shared_->free.push_back(stack);
}

std::size_t StackPool::stack_bytes() const noexcept { return shared_->stack_bytes; }
std::size_t StackPool::in_use() const noexcept { return shared_->in_use; }

bool in_stack_guard(std::uintptr_t address) noexcept {
  const auto count = std::min(num_guards.load(), kMostStacks);
  for (std::size_t i = 0; i < count; ++i) {
    const auto low = guards[i].load();
    if (address >= low && address < low + kGuardBytes) return true;
  }
  return false;
}

}  // namespace smp::fiber
