// d2d/lend/small_blocks.h: memory of small CPU tensors, used again by the thread that freed it.
// glibc has no fast path for aligned chunks: of each it asks some 840 instructions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace smp::d2d {

/// Blocks of a few sizes, each what c10::alloc_cpu() gave: c10::free_cpu() may free any of them. A
/// thread keeps at most kMostKept of a size, until it ends. Threads: any, each its own; a block may
/// be freed by another thread than the one that took it.
class SmallBlocks {
 public:
  /// The largest block; larger ones are not for it, nor are empty ones.
  static constexpr std::size_t kMost = 4096;
  static constexpr int kSizes = 7;  // 64, 128, ..., kMost
  static constexpr std::size_t kMostKept = 64;
  /// False if a sanitizer is to see every use of freed memory: then nothing is kept.
  static bool keeps_any() noexcept;

  /// Returns the smallest size class for `bytes`, 1 to kMost.
  static int size_for(std::size_t bytes) noexcept;
  static std::size_t bytes_of(int size) noexcept { return std::size_t{64} << size; }

  /// Returns a block of a size class. @throws c10::Error  there is no memory.
  [[nodiscard]] static void* take(int size);
  static void give(int size, void* block) noexcept;
  /// The number of blocks of a size class that the calling thread keeps.
  static std::size_t kept(int size) noexcept;
};

}  // namespace smp::d2d
