// d2d/wires/shm/shm_blocks.h: the blocks that a rank sends through: which are free, and who has the
// others. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "d2d/wire/wire.h"
#include "d2d/wires/shm/host_shm_segment.h"

namespace smp::d2d {

/// The blocks of one segment. A receiver who takes nothing does not get all of them: some are left
/// for each other.
class ShmBlocks {
 public:
  /// @param segment  outlives this
  /// @param peers    the members of the wire, the owner of the segment at position `own` among them
  ShmBlocks(const HostShmSegment& segment, std::size_t blocks, int peers, int own);

  /// Takes a block for the peer at position `to`, in use from now on; nothing: that peer may get
  /// none. It is free again once the peer has given it back.
  std::optional<std::uint32_t> take(std::size_t to);
  /// Takes a block whose return tells that what `token` stands for has left.
  std::optional<std::uint32_t> take(std::size_t to, Token token);
  /// Calls `has_left` with the token of each such block that has come back.
  template <class HasLeft>
  void take_back_offered(HasLeft&& has_left);

 private:
  struct Offered {
    std::uint32_t block = 0;
    Token token = 0;
  };

  bool may_take(std::size_t to) const noexcept;
  std::optional<std::uint32_t> take_free(std::size_t to);
  void take_back(bool all);
  bool is_back(std::uint32_t block) const noexcept;
  void free(std::uint32_t block);

  const HostShmSegment& segment_;
  std::size_t reserve_;                 // blocks that each peer can have, whatever others hold
  std::vector<std::size_t> held_;       // by each peer
  std::vector<std::size_t> receivers_;  // of each block, the last
  std::vector<std::uint32_t> free_;
  std::deque<std::uint32_t> used_;  // oldest first; none that was offered
  std::vector<Offered> offered_;    // not fetched yet
};

template <class HasLeft>
void ShmBlocks::take_back_offered(HasLeft&& has_left) {
  if (offered_.empty()) return;
  std::erase_if(offered_, [&](const Offered& offered) {
    if (!is_back(offered.block)) return false;
    free(offered.block);
    has_left(offered.token);
    return true;
  });
}

}  // namespace smp::d2d
