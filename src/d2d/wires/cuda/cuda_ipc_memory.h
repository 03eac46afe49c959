// d2d/wires/cuda/cuda_ipc_memory.h: the memory and the events that processes of one machine open of
// each other's GPUs. Threads: the rank's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "d2d/wire/members.h"
#include "d2d/wires/cuda/cuda_device.h"
#include "smp/rank.h"

namespace smp::d2d {

/// The sizes of the wire, the same on all ranks.
struct CudaIpcOptions {
  std::size_t page_bytes = 256 << 10;
  std::uint32_t pages = 256;       ///< that one rank may write to at another
  std::uint32_t piece_pages = 32;  ///< most of a transfer in one piece
  std::uint32_t events = 64;       ///< pieces on their way from one rank to all others
  /// True if events pass between processes of different GPUs. Otherwise a piece is announced when
  /// it is there, which costs the time in which the receiver could have put work behind it.
  bool shared_events = true;
};

/// The arena of a rank, with a window for each member of the wire, its events, and what it has
/// opened of the others'. Members are named by their positions.
class CudaIpcMemory {
 public:
  /// @param members  of the wire; outlive this
  /// @param gpus     CudaDevice::identity() of each
  CudaIpcMemory(std::unique_ptr<CudaDevice> device, const Members& members, GlobalRank own,
                const std::vector<std::string>& gpus, const CudaIpcOptions& options);
  /// Frees everything; nothing if others were connected: they may write here still, and to free
  /// anything would wait for what a process that is gone should have done. The end of this process
  /// frees all of it.
  ~CudaIpcMemory();
  CudaIpcMemory(const CudaIpcMemory&) = delete;
  CudaIpcMemory& operator=(const CudaIpcMemory&) = delete;

  /// See CudaIpcWire.
  std::string offer() const;
  void connect(const std::vector<std::string>& offers);
  void disconnect() noexcept;

  CudaDevice& device() noexcept { return *device_; }
  /// The stream for copies into windows of this rank.
  CudaDevice::Stream copies() const noexcept { return copies_; }
  /// Returns an event of this process alone, which is never freed before this ends.
  CudaDevice::Event make_own_event();
  /// Returns the event of a piece that this rank sends.
  CudaDevice::Event event(std::uint32_t number) const { return events_[number]; }
  /// True if a piece that comes from there or goes there may be waited for before it is there.
  bool shares_events(std::size_t peer) const { return peers_[peer].shares_events; }
  CudaDevice::Event event_of(std::size_t peer, std::uint32_t number) const {
    return peers_[peer].events[number];
  }
  /// Returns a page of the window that `sender` has here.
  std::byte* page_from(std::size_t sender, std::uint32_t page) const noexcept {
    return page_at(arena_, sender, page);
  }
  /// Returns a page of this rank's window there.
  std::byte* page_to(std::size_t receiver, std::uint32_t page) const noexcept {
    return page_at(peers_[receiver].arena, own_, page);
  }

 private:
  struct Peer {
    bool shares_events = false;  // with this rank
    std::byte* arena = nullptr;  // opened here
    std::vector<CudaDevice::Event> events{};
  };

  void set_aside();
  void free_all() noexcept;
  std::byte* page_at(std::byte* arena, std::size_t sender, std::uint32_t page) const noexcept {
    return arena + (sender * options_.pages + page) * options_.page_bytes;
  }

  std::unique_ptr<CudaDevice> device_;
  const Members& members_;
  std::size_t own_;
  CudaIpcOptions options_;
  std::byte* arena_ = nullptr;
  CudaDevice::Stream copies_ = nullptr;
  std::vector<CudaDevice::Event> events_;      // of pieces, by number
  std::vector<CudaDevice::Event> own_events_;  // of this process alone
  std::vector<Peer> peers_;                    // that of this rank is not used
};

}  // namespace smp::d2d
