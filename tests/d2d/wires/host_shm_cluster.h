// d2d/wires/host_shm_cluster.h: ranks of one process that reach each other through shared memory.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/memory/shared_memory.h"
#include "d2d/channel/channel_cluster.h"
#include "d2d/wires/shm/host_shm_wire.h"

namespace smp::d2d {

/// A few short records fill a ring, and a few pieces all blocks.
inline constexpr HostShmOptions kScarce{.ring_lines = 16, .block_bytes = 4096, .blocks = 3};

enum class Fetches { kNothing, kLarge };

inline HostShmProcesses own_process(const Members& members, Fetches fetches) {
  return {std::vector<std::int64_t>(static_cast<std::size_t>(members.size()), ::getpid()),
          fetches == Fetches::kLarge};
}

/// Sizes at which a wire with `options` changes its way: of a record of control bytes, of a piece,
/// of what is fetched instead.
inline std::vector<std::size_t> edges_of(const HostShmOptions& options) {
  return {options.ring_lines / 4 * ShmRing::kLine - ShmRing::kHeader, options.block_bytes,
          2 * options.block_bytes, options.least_fetched};
}

/// One for each of `members`.
inline std::vector<std::unique_ptr<Wire>> make_wires(const Members& members,
                                                     const HostShmOptions& options,
                                                     const HostShmProcesses& processes) {
  const auto bytes = HostShmSegment::bytes_for(members.size(), options);
  std::vector<base::SharedMemory> owned;
  for (int i = 0; i < members.size(); ++i) owned.push_back(*base::SharedMemory::make(bytes));
  std::vector<std::unique_ptr<Wire>> wires;
  for (const GlobalRank rank : members) {
    std::vector<base::SharedMemory> mapped;
    for (const auto& memory : owned) {
      mapped.push_back(*base::SharedMemory::open(memory.address(), bytes));
    }
    wires.push_back(
        std::make_unique<HostShmWire>(rank, members, std::move(mapped), options, processes));
  }
  return wires;
}

class HostShmCluster : public Cluster {
 public:
  explicit HostShmCluster(const HostShmOptions& options = {}, Fetches fetches = Fetches::kNothing) {
    const auto members = Members::all(4);
    for (auto& wire : make_wires(members, options, own_process(members, fetches))) {
      players_.push_back(std::make_unique<Player>(Routes(std::move(wire))));
    }
  }
};

}  // namespace smp::d2d
