// server/collectives.h: barrier, broadcast and gather among ranks, outside of steps, over the same
// frames as everything else. Threads: the rank's; every call may suspend.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/fiber.h"
#include "server/message.h"
#include "smp/call.h"

namespace smp::server {

/// All members of a group call the same collectives in the same order; members that are given as
/// `ranks` (ascending pp_ranks, this one among them).
class Collectives {
 public:
  using Send = std::function<void(int peer, Message&& message)>;
  Collectives(int rank, Send send) : rank_(rank), send_(std::move(send)) {}

  /// One packet of every member, in order of `ranks`, on every member.
  std::vector<Packet> all_gather(const std::vector<int>& ranks, Packet own, const char* what);
  /// `root`'s packet on every member. `root` is a rank, not an index.
  Packet broadcast(const std::vector<int>& ranks, int root, Packet own);
  void barrier(const std::vector<int>& ranks);

  /// Takes a kCollective message; safe in a poll.
  void deliver(int source, Message&& message);
  /// `peer` has sent `sent` messages and will send no more. Since messages have no order, some may
  /// still be on their way; when they are here, waiting and later calls with it throw
  /// PeerLostError.
  void peer_left(int peer, std::uint64_t sent, const std::string& why);
  /// Messages to `peer` so far.
  std::uint64_t sent_to(int peer) const;
  /// Ends every wait with PeerLostError(`why`).
  void abort(const std::string& why);

 private:
  std::uint64_t next_number(const std::vector<int>& ranks);
  void send(int peer, std::uint64_t group, std::uint64_t number, const Packet& packet);
  Packet receive(int peer, std::uint64_t group, std::uint64_t number, const char* what);
  bool is_gone(int peer) const;
  void wake_all();

  struct Farewell {
    std::uint64_t sent;
    std::string why;
  };
  struct Slot {
    int source;
    std::uint64_t group;
    std::uint64_t number;
    auto operator<=>(const Slot&) const = default;
  };
  int rank_;
  Send send_;
  std::map<std::uint64_t, std::uint64_t> numbers_;  // calls so far, by group
  std::map<Slot, Message> arrived_;
  std::map<Slot, base::Event*> waiting_;
  std::map<int, std::uint64_t> sent_;      // messages so far, by peer
  std::map<int, std::uint64_t> received_;  // likewise
  std::map<int, Farewell> left_;
  std::string aborted_;
};

}  // namespace smp::server
