// d2d/lend/small_blocks.cpp: stacks of free blocks.
#include "d2d/lend/small_blocks.h"

#include <c10/core/impl/alloc_cpu.h>

#include <array>
#include <bit>

namespace smp::d2d {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kKeeps = false;
#elif defined(__has_feature)
constexpr bool kKeeps = !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer);
#else
constexpr bool kKeeps = true;
#endif

/// The free blocks of one thread. It needs no destructor: tensors that outlive the thread's other
/// variables are still freed by it.
struct Free {
  std::array<std::array<void*, SmallBlocks::kMostKept>, SmallBlocks::kSizes> blocks;
  std::array<std::uint32_t, SmallBlocks::kSizes> counts;
  bool watched;  // somebody empties it when the thread ends
  bool ended;
};
thread_local constinit Free own{};

struct AtThreadEnd {
  ~AtThreadEnd() {
    own.ended = true;
    for (std::size_t size = 0; size < own.counts.size(); ++size) {
      while (own.counts[size] > 0) c10::free_cpu(own.blocks[size][--own.counts[size]]);
    }
  }
};

void watch_thread() noexcept {
  static thread_local AtThreadEnd at_end;
  static_cast<void>(at_end);
  own.watched = true;
}

}  // namespace

bool SmallBlocks::keeps_any() noexcept { return kKeeps; }

std::size_t SmallBlocks::kept(int size) noexcept {
  return own.counts[static_cast<std::size_t>(size)];
}

int SmallBlocks::size_for(std::size_t bytes) noexcept {
  return bytes <= 64 ? 0 : static_cast<int>(std::bit_width(bytes - 1)) - 6;
}

void* SmallBlocks::take(int size) {
  auto& count = own.counts[static_cast<std::size_t>(size)];
  if (count > 0) return own.blocks[static_cast<std::size_t>(size)][--count];
  return c10::alloc_cpu(bytes_of(size));
}

void SmallBlocks::give(int size, void* block) noexcept {
  auto& count = own.counts[static_cast<std::size_t>(size)];
  if (!kKeeps || count == kMostKept || own.ended) return c10::free_cpu(block);
  if (!own.watched) watch_thread();
  own.blocks[static_cast<std::size_t>(size)][count++] = block;
}

}  // namespace smp::d2d
