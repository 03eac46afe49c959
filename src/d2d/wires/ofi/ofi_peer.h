// d2d/wires/ofi/ofi_peer.h: what an OfiWire knows of one other rank. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "d2d/wire/wire.h"
#include "d2d/wires/ofi/ofi_frame.h"
#include "d2d/wires/ofi/ofi_inbox.h"
#include "d2d/wires/ofi/ofi_memory.h"
#include "d2d/wires/ofi/ofi_outbox.h"

namespace smp::d2d {

struct OfiPeer;

/// A transfer that was granted, is to be sent, or both.
struct OfiTransfer {
  OfiPeer* peer = nullptr;
  TransferId id = 0;
  std::span<const std::byte> bytes;
  Token token = 0;
  bool is_sent = false;  ///< by Wire::send()
  bool is_granted = false;
  bool is_awaited = false;  ///< the peer has received it, and says so in a frame that waits
  OfiGrant grant;
  OfiMemory memory;
  std::size_t written = 0;           ///< bytes
  std::size_t writes_in_flight = 0;  ///< segments
};

struct OfiPeer {
  explicit OfiPeer(GlobalRank peer) : rank(peer), inbox(peer) {}

  const GlobalRank rank;
  std::uint64_t address = 0;  ///< as the endpoint names it
  bool has_left = false;
  bool is_reached = false;              ///< something was sent there
  base::Nanoseconds refused_since = 0;  ///< libfabric takes nothing for it; 0: it does
  base::Nanoseconds refused_last = 0;

  OfiOutbox outbox;
  std::deque<OfiGrant> grants;       ///< not started
  std::deque<OfiTransfer*> writing;  ///< with segments that are not started
  std::size_t frames_in_flight = 0;
  std::size_t writes_in_flight = 0;
  std::unordered_map<TransferId, OfiTransfer> outgoing;

  OfiInbox inbox;
  bool is_readable = false;
};

/// All members, by position; that of this rank is not used.
using OfiPeers = std::vector<std::unique_ptr<OfiPeer>>;

}  // namespace smp::d2d
