// d2d/wires/shm/host_shm_segment.cpp: offsets.
#include "d2d/wires/shm/host_shm_segment.h"

#include <utility>

namespace smp::d2d {
namespace {

constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) noexcept {
  return (bytes + to - 1) / to * to;
}

constexpr std::size_t kRings = 2 * ShmRing::kLine;

std::size_t offset_of_states(int peers, const HostShmOptions& options) noexcept {
  return kRings + static_cast<std::size_t>(peers) * ShmRing::bytes_for(options.ring_lines);
}

std::size_t offset_of_blocks(int peers, const HostShmOptions& options) noexcept {
  const auto states = offset_of_states(peers, options);
  return round_up(states + options.blocks * sizeof(std::uint32_t), kPage);
}

}  // namespace

HostShmSegment::HostShmSegment(base::SharedMemory memory, int peers,
                               const HostShmOptions& options) noexcept
    : memory_(std::move(memory)),
      options_(options),
      states_(offset_of_states(peers, options)),
      blocks_(offset_of_blocks(peers, options)) {}

std::size_t HostShmSegment::bytes_for(int peers, const HostShmOptions& options) noexcept {
  return offset_of_blocks(peers, options) + options.blocks * options.block_bytes;
}

std::atomic_ref<std::uint32_t> HostShmSegment::left() const noexcept {
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at(0)));
}

std::uint32_t& HostShmSegment::doorbell() const noexcept {
  return *reinterpret_cast<std::uint32_t*>(at(ShmRing::kLine));
}

std::byte* HostShmSegment::ring(int peer) const noexcept {
  return at(kRings + static_cast<std::size_t>(peer) * ShmRing::bytes_for(options_.ring_lines));
}

std::atomic_ref<std::uint32_t> HostShmSegment::in_use(std::uint32_t block) const noexcept {
  return std::atomic_ref<std::uint32_t>(
      *reinterpret_cast<std::uint32_t*>(at(states_ + block * sizeof(std::uint32_t))));
}

std::byte* HostShmSegment::block(std::uint32_t number) const noexcept {
  return at(blocks_ + number * options_.block_bytes);
}

}  // namespace smp::d2d
