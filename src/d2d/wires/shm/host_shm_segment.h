// d2d/wires/shm/host_shm_segment.h: the memory through which one rank sends to the others of its
// machine: what lies where. Threads: as memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/memory/shared_memory.h"
#include "d2d/wires/shm/shm_ring.h"

namespace smp::d2d {

/// The sizes of a segment, the same on all ranks. Memory that is never used costs nothing.
struct HostShmOptions {
  std::size_t ring_lines = 1024;       ///< of the ring to one peer
  std::size_t block_bytes = 64 << 10;  ///< most bytes of a transfer in one piece
  std::size_t blocks = 1024;           ///< for pieces on their way to all peers
  /// The least bytes of a transfer that the receiver fetches from where it lies, if that is
  /// allowed.
  std::size_t least_fetched = 32 << 10;
  /// The time, in nanoseconds, for which a rank that leaves beside a lost one lets the launcher end
  /// the job, which says why, and once.
  base::Nanoseconds launcher_patience = 2 * base::kSecond;
};

/// The memory in which one rank sends to others. Written by its owner, but for what the readers
/// give back. Begins as zeros:
///
///     owner has left, and its doorbell     1 line each
///     ring to peer 0, 1, ...               ShmRing::bytes_for(ring_lines) each
///     block 0, 1, ... is on its way        4 bytes each, to the end of a line
///     block 0, 1, ...                      block_bytes each, from a page on
class HostShmSegment {
 public:
  HostShmSegment(base::SharedMemory memory, int peers, const HostShmOptions& options) noexcept;
  static std::size_t bytes_for(int peers, const HostShmOptions& options) noexcept;

  /// Not 0 once the owner has sent all that it ever will.
  std::atomic_ref<std::uint32_t> left() const noexcept;
  /// The word of the owner's base::Doorbell, which others ring: a line that is hardly ever written.
  std::uint32_t& doorbell() const noexcept;
  std::byte* ring(int peer) const noexcept;
  /// The state of a block: 1 from when the owner fills it until its reader is done with it.
  std::atomic_ref<std::uint32_t> in_use(std::uint32_t block) const noexcept;
  std::byte* block(std::uint32_t number) const noexcept;

 private:
  std::byte* at(std::size_t offset) const noexcept { return memory_.bytes().data() + offset; }

  base::SharedMemory memory_;
  HostShmOptions options_;
  std::size_t states_, blocks_;  // offsets
};

}  // namespace smp::d2d
