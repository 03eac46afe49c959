// base/memory/shared_heap.h: a heap of large blocks in memory that other processes of this machine
// can map: what lies in it can be handed to them without a copy.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/memory/shared_memory.h"

namespace smp::base {

/// A heap of blocks of whole pages. Address space is taken once, memory only where somebody has
/// written, and memory of freed blocks is kept for the next ones, so that a training step touches
/// the same pages as the one before it. Memory beyond what was recently used is given back to the
/// machine. Threads: any.
class SharedHeap {
 public:
  static constexpr std::size_t kPage = 4096;
  /// Free memory beyond what was used recently that is not worth giving back.
  static constexpr std::size_t kSlack = std::size_t{256} << 20;

  /// Makes a heap of `bytes` of address space, a multiple of kPage; nullptr if the machine refuses.
  static std::unique_ptr<SharedHeap> make(std::size_t bytes) noexcept;
  explicit SharedHeap(SharedMemory memory);
  SharedHeap(const SharedHeap&) = delete;
  SharedHeap& operator=(const SharedHeap&) = delete;

  /// Returns a block of at least `bytes` (at least one), on a page boundary; nullptr if there is no
  /// room.
  [[nodiscard]] void* allocate(std::size_t bytes);
  /// Frees a block that allocate() returned. Returns its bytes: whole pages.
  std::size_t free(void* block);
  static constexpr std::size_t whole_pages(std::size_t bytes) noexcept {
    return (bytes + kPage - 1) / kPage * kPage;
  }
  /// Gives all memory of free blocks back to the machine.
  void trim();
  [[nodiscard]] bool contains(const void* address) const noexcept {
    return offset(address) < size();
  }
  /// Returns the offset of an address from the start of the heap, in bytes; at least size() if the
  /// address lies elsewhere.
  [[nodiscard]] std::size_t offset(const void* address) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(address) - start());
  }
  [[nodiscard]] const SharedMemory& memory() const noexcept { return memory_; }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.bytes().size(); }

  struct Usage {
    std::size_t used = 0;  ///< bytes of blocks
    std::size_t kept = 0;  ///< at most this many bytes of memory belong to none
  };
  [[nodiscard]] Usage usage() const;

  // Around fork(), which would let both processes write to the same memory.

  /// Locks the heap: nobody can allocate until the fork is done.
  void before_fork() noexcept { mutex_.lock(); }
  void after_fork_in_parent() noexcept { mutex_.unlock(); }
  /// Makes the memory private to the child, and to its own children: their writes are their own
  /// from now on. Pages that the child has not written to are still the parent's, so the parent
  /// must wait while the child needs them.
  void after_fork_in_child() noexcept;

 private:
  /// The part of a range that may take memory, from its first byte to behind its last. A count of
  /// bytes alone would not say on which side of a cut they lie.
  struct Touched {
    std::size_t begin = 0, end = 0;  // offsets in the heap; equal: there are none
    std::size_t bytes() const noexcept { return end - begin; }
  };
  struct Range {
    std::size_t size = 0;
    Touched touched;
  };
  using Ranges = std::map<std::size_t, Range>;  // by offset

  static Touched joined(const Touched& one, const Touched& other) noexcept;
  std::byte* start() const noexcept { return memory_.bytes().data(); }
  void add_free(std::size_t offset, Range range);
  Range take_free(Ranges::iterator range);
  void give_back_beyond(std::size_t bytes);

  SharedMemory memory_;
  bool private_ = false;  // this process is a child, and has its own
  mutable std::mutex mutex_;
  Ranges free_;                                          // never two side by side
  std::set<std::pair<std::size_t, std::size_t>> sizes_;  // of the free ones, with their offsets
  std::unordered_map<std::size_t, std::size_t> used_;    // sizes by offset
  std::size_t used_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
  std::size_t recently_used_ = 0;  // the most bytes; sinks slowly
};

}  // namespace smp::base
