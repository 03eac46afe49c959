// d2d/tensors/tensor_count.h: how many bytes of CPU tensors this process holds, and held at most.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>

namespace smp::d2d {

/// The bytes of CPU tensors that were made since install(). A process as the kernel counts it holds
/// more: code, what operators and the heap keep, and memory that other ranks lend. Blocks count
/// with what the heap rounds them up to. Threads: any, but for install().
class TensorCount {
 public:
  /// Counts what LibTorch's own allocator gives from now on, to the end of the process. Returns
  /// false if the program has set another one, whose blocks have no known size: then nothing is
  /// known. The first call decides. Threads: while no other allocates.
  static bool install();
  static bool installed() noexcept;
  /// Returns true if `allocator` is the one that install() has set.
  static bool is_own(const c10::Allocator* allocator) noexcept;

  /// For allocators whose blocks are not from LibTorch's own.
  static void add(std::size_t bytes) noexcept;
  static void remove(std::size_t bytes) noexcept;

  /// Returns the bytes that live now.
  static std::int64_t live() noexcept;
  /// Returns the most bytes that lived at once since forget_most(), or since install().
  static std::int64_t most() noexcept;
  static void forget_most() noexcept;
};

}  // namespace smp::d2d
