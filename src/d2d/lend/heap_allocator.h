// d2d/lend/heap_allocator.h: large CPU tensors of this process lie in memory that other processes
// of this machine can map, so that they can be lent (d2d/lend/loans.h).
#pragma once

#include <cstddef>

#include "base/memory/shared_heap.h"
#include "base/memory/shared_memory_refusal.h"

namespace smp::d2d {

/// LibTorch's allocator for CPU tensors of at least kLeast bytes, from the first install() to the
/// end of the process. Small ones are SmallBlocks; what is between, and what finds no room, comes
/// from LibTorch's own. Any thread may allocate. What the child of a fork() writes is its own, but
/// what it only reads there may be what the parent has written since: it is no snapshot
/// (base/memory/shared_heap.h).
class HeapAllocator {
 public:
  static constexpr std::size_t kLeast = std::size_t{64} << 10;

  /// Returns the heap; nullptr if the machine refuses one, or the program has set another allocator
  /// than LibTorch's own before. The first call decides. Threads: while no other allocates.
  static base::SharedHeap* install();
  /// Returns the reason why install() returned nullptr, if it ever did.
  static const base::MemoryRefusal& refusal() noexcept;
  /// True if this process is the child of a fork() after install(): then it must not touch the
  /// memory that its parent shares with other ranks.
  static bool in_forked_child() noexcept;
};

}  // namespace smp::d2d
