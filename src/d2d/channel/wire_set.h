// d2d/channel/wire_set.h: the wires of a rank, called as one. Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "d2d/wire/wire.h"

namespace smp::d2d {

class KeepAlive;

/// Owns wires, and calls all of them; see Wire.
class WireSet {
 public:
  /// @param keep_alive  with ranks of other machines, whatever the wires notice; or nullptr
  explicit WireSet(std::unique_ptr<KeepAlive> keep_alive);
  WireSet(WireSet&&) noexcept;
  /// Destroys the wires, the last first: one may use what another has.
  ~WireSet();

  /// @param used  false: no rank sends anything over it, and it is not polled
  void add(std::unique_ptr<Wire> wire, bool used);
  std::size_t size() const noexcept { return wires_.size(); }
  Wire& operator[](std::size_t number) const { return *wires_[number]; }

  /// Returns a wire in use that only the rank's thread may call; nullptr: there is none.
  const Wire* bound_to_one_thread() const noexcept;
  /// Returns the doorbell of the first wire that has one, by which peers of this machine are
  /// reached; else nullptr.
  base::Doorbell* doorbell() const noexcept;
  void set_handler(WireHandler* handler) noexcept;

  bool poll();
  /// True if bytes have moved on any wire since the last call.
  bool take_stir() noexcept;
  /// Reports the transfers of every wire.
  void complete();
  /// Reports the transfers of every wire but `control`, which has just done so itself.
  void complete_beside(const Wire& control);
  /// Lets every wire look for losses, and looks whether a watched rank is gone. Nobody calls it as
  /// long as something moves: ranks may watch each other over another network than their tensors
  /// take.
  /// @throws PeerLostError  a rank of another machine is lost.
  void check_links();

  bool drained() const noexcept;
  /// Returns true once all wires are left. Poll all of them until then: what arrives on one may
  /// announce what somebody still sends on another.
  bool leave();
  base::Nanoseconds patience(bool unwinding) const noexcept;
  void give_up(base::Nanoseconds waited, bool unwinding) noexcept;

 private:
  std::vector<std::unique_ptr<Wire>> wires_;
  std::vector<Wire*> polled_;
  std::unique_ptr<KeepAlive> keep_alive_;
};

}  // namespace smp::d2d
