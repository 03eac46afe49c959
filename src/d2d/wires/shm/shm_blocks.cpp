// d2d/wires/shm/shm_blocks.cpp: see the header.
#include "d2d/wires/shm/shm_blocks.h"

#include <algorithm>

namespace smp::d2d {
namespace {

/// The number of blocks that are kept for each receiver, if there are so many.
constexpr std::size_t kReserve = 16;

}  // namespace

ShmBlocks::ShmBlocks(const HostShmSegment& segment, std::size_t blocks, int peers, int own)
    : segment_(segment),
      reserve_(std::min(kReserve, blocks / static_cast<std::size_t>(std::max(1, peers - 1)))),
      held_(static_cast<std::size_t>(peers)),
      receivers_(blocks) {
  held_[static_cast<std::size_t>(own)] = reserve_;  // needs none
  for (auto block = static_cast<std::uint32_t>(blocks); block-- > 0;) free_.push_back(block);
}

/// True if `to` may get a block, so that all receivers together are left the blocks that are kept
/// for them.
bool ShmBlocks::may_take(std::size_t to) const noexcept {
  if (free_.empty()) return false;
  if (held_[to] < reserve_) return true;
  std::size_t kept = 0;
  for (const std::size_t held : held_) kept += reserve_ - std::min(reserve_, held);
  return free_.size() > kept;
}

/// Takes the block that was free for the shortest time, since it may be in a cache.
std::optional<std::uint32_t> ShmBlocks::take_free(std::size_t to) {
  take_back(/*all=*/false);
  if (!may_take(to)) take_back(/*all=*/true);
  if (!may_take(to)) return std::nullopt;
  const auto block = free_.back();
  free_.pop_back();
  receivers_[block] = to;
  ++held_[to];
  segment_.in_use(block).store(1, std::memory_order_relaxed);
  return block;
}

std::optional<std::uint32_t> ShmBlocks::take(std::size_t to) {
  const auto block = take_free(to);
  if (block) used_.push_back(*block);
  return block;
}

std::optional<std::uint32_t> ShmBlocks::take(std::size_t to, Token token) {
  const auto block = take_free(to);
  if (block) offered_.push_back({*block, token});
  return block;
}

bool ShmBlocks::is_back(std::uint32_t block) const noexcept {
  return segment_.in_use(block).load(std::memory_order_acquire) == 0;
}

void ShmBlocks::free(std::uint32_t block) {
  --held_[receivers_[block]];
  free_.push_back(block);
}

/// Takes back blocks that their readers are done with.
/// @param all  also those behind one that is still in use
void ShmBlocks::take_back(bool all) {
  while (!used_.empty() && is_back(used_.front())) {
    free(used_.front());
    used_.pop_front();
  }
  if (!all) return;
  std::erase_if(used_, [&](std::uint32_t block) {
    if (!is_back(block)) return false;
    free(block);
    return true;
  });
}

}  // namespace smp::d2d
