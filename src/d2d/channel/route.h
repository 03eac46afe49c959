// d2d/channel/route.h: which wire carries what to whom. Paper: App. G.1 (the communication
// initiator). Threads: one at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "d2d/channel/wire_set.h"
#include "d2d/wire/members.h"
#include "d2d/wire/wire.h"

namespace smp::d2d {

class Loans;

/// A wire and what it may carry.
struct WireUse {
  std::unique_ptr<Wire> wire;
  bool control = true;
  bool data = true;
};

/// Owns the wires of a channel, with one row for each peer. All ranks name their wires in the same
/// order: the sender chooses the wire of a tensor, and names its number.
class Routes {
 public:
  /// Makes routes over one wire that carries everything.
  template <std::derived_from<Wire> AnyWire>
  Routes(std::unique_ptr<AnyWire> wire)  // NOLINT: a wire is a route
      : Routes(for_everything(std::move(wire))) {}
  /// Makes routes that use for each peer the first wire of the list that may and can carry the
  /// bytes.
  /// @throws UsageError  some peer of some wire has no wire for control bytes, or for data in host
  /// memory; the wires do not belong to one rank.
  explicit Routes(std::vector<WireUse> wires);
  /// @param loans  for large tensors between ranks that it reaches, instead of any wire; or nullptr
  Routes(std::vector<WireUse> wires, std::unique_ptr<Loans> loans);
  /// @param keep_alive  with ranks of other machines, whatever the wires notice; or nullptr
  Routes(std::vector<WireUse> wires, std::unique_ptr<Loans> loans,
         std::unique_ptr<KeepAlive> keep_alive);
  Routes(Routes&&) noexcept;
  ~Routes();

  GlobalRank rank() const noexcept { return wires_[0].rank(); }
  /// This rank and all that it reaches, in the order of the wires' members.
  const Members& members() const noexcept { return members_; }
  bool reaches(GlobalRank peer) const noexcept { return peer != rank() && members_.contain(peer); }

  const WireSet& wires() const noexcept { return wires_; }
  /// Returns the wires. Those that no row names, here or at a peer, are not polled.
  WireSet& wires() noexcept { return wires_; }
  /// Returns the wire for control bytes to and from `peer`, which must be reached.
  Wire& control(GlobalRank peer) const { return wires_[row(peer).control]; }
  /// Returns the number of the wire for data to `peer` that lies in `kind`; kNoWire: none.
  std::uint8_t data(GlobalRank peer, MemoryKind kind) const {
    return row(peer).data[static_cast<std::size_t>(kind)];
  }
  const DataWires& data(GlobalRank peer) const { return row(peer).data; }
  /// Returns the loans through which `peer` borrows and lends large tensors; nullptr: it does
  /// neither.
  Loans* loans(GlobalRank peer) const;
  /// True if large tensors are lent to some peer.
  bool lends() const noexcept { return loans_ != nullptr; }
  /// Frees what ranks that borrowed it have given back; see Loans.
  void take_back_loans();

  /// Returns the path to `peer`, which must be reached, as text: "host_shm", or "mpi, tensors over
  /// host_shm".
  /// @param memory  the memory that tensors lie in
  std::string path(GlobalRank peer, MemoryKind memory = MemoryKind::kHost) const;
  /// Returns every path, and the peers it leads to: neighbours among the members stand together.
  std::vector<std::pair<std::string, std::vector<GlobalRank>>> paths(
      MemoryKind memory = MemoryKind::kHost) const;
  /// Returns a table with one line for each peer, for people.
  std::string table() const;

 private:
  struct Row {
    std::uint8_t control = kNoWire;
    DataWires data = kNoDataWires;
  };
  const Row& row(GlobalRank peer) const {
    return rows_[static_cast<std::size_t>(members_.position(peer))];
  }
  static std::vector<WireUse> for_everything(std::unique_ptr<Wire> wire);
  void choose(const std::vector<WireUse>& uses);
  bool uses(std::uint8_t wire) const;

  std::unique_ptr<Loans> loans_;
  WireSet wires_;  // after the loans: they are destroyed first
  Members members_;
  std::vector<Row> rows_;  // by position among the members
};

}  // namespace smp::d2d
