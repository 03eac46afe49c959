// d2d/wires/neuron/neuron_copies.h: copies between Neuron memory and the host's that are put on a
// queue and done later. Threads: the rank's thread only; nothing here blocks but the destructor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "d2d/wires/fifo.h"
#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_requests.h"

namespace smp::d2d {

/// Copies of one core. Copies of one direction are done in order, those of different ones in any.
class NeuronCopies {
 public:
  enum class Direction : std::uint8_t { kToHost, kToDevice };
  /// The caller's name for a copy.
  using Ticket = std::uint64_t;

  /// @param runtime  outlives this
  NeuronCopies(NeuronRuntime& runtime, RelativeCore core);
  /// Waits for what is under way, for a while.
  ~NeuronCopies();
  NeuronCopies(const NeuronCopies&) = delete;
  NeuronCopies& operator=(const NeuronCopies&) = delete;

  /// Puts a copy on the queue.
  /// @param place  with room for `size` bytes
  /// @return false  the queue is full: try again when a copy is done
  /// @throws PeerLostError  the runtime refuses it.
  [[nodiscard]] bool start(Direction direction, const NeuronPlace& place, std::byte* host,
                           std::size_t size, Ticket ticket);
  /// Returns the tickets of copies to the host that are done since the last call, oldest first;
  /// valid until the next call.
  /// @throws PeerLostError  one went wrong.
  const std::vector<Ticket>& done_to_host() { return done(Direction::kToHost); }
  /// The same for copies to the device.
  const std::vector<Ticket>& done_to_device() { return done(Direction::kToDevice); }
  /// Waits until nothing is under way. Returns false if that took too long: memory of both sides
  /// may still be used then.
  bool wait() noexcept;
  bool idle() const noexcept { return under_way_[0].empty() && under_way_[1].empty(); }
  /// Throws if a copy has been under way for long: the core does not answer.
  void require_alive();

 private:
  struct Copy : NeuronRequest {
    Ticket ticket = 0;
    std::size_t size = 0;
  };

  const std::vector<Ticket>& done(Direction direction);
  int put(Direction direction, const NeuronPlace& place, std::byte* host, Copy& copy) const;
  std::string describe(Direction direction, const Copy& copy) const;

  NeuronRequests requests_;
  using Place = std::unique_ptr<Copy>;    // results are written there: copies do not move
  std::array<Fifo<Place>, 2> under_way_;  // by direction
  std::vector<Place> spare_;
  std::vector<Ticket> done_;
};

}  // namespace smp::d2d
