// d2d/wires/neuron/neuron_send_receive.h: the runtime's asynchronous send and receive, of one core.
// Threads: the rank's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "d2d/wires/neuron/neuron_places.h"
#include "d2d/wires/neuron/neuron_runtime.h"

namespace smp::d2d {

/// Where a core is, as its peers name it.
struct NeuronAddress {
  std::string ip;  ///< of its host
  AbsoluteCore core;
};

/// What a call is made for; text only when it went wrong.
struct NeuronDoing {
  const char* what;         ///< "sending "
  const std::string& peer;  ///< "to rank 3 (core 2 of 10.0.0.1)"
  std::size_t bytes = 0;    ///< 0: it is about no transfer
  std::uint64_t transfer = 0;
  std::string text() const;
};

/// Calls of nrt_async_sendrecv.h with checked statuses, for one core of this process. A
/// communicator goes one way: who sends has connected it, who receives has accepted it.
class NeuronSendReceive {
 public:
  using Communicator = void*;
  using Request = void*;
  /// The end of a request: how many bytes moved.
  using Moved = std::optional<std::size_t>;

  /// @param runtime  outlives this
  /// @param peers    that will be sent to and received from
  /// @throws PeerLostError  the runtime does not offer it here, or not for so many peers; says
  /// which variables and which network it needs.
  NeuronSendReceive(NeuronRuntime& runtime, RelativeCore core, int peers);
  /// Closes what is open.
  ~NeuronSendReceive();
  NeuronSendReceive(const NeuronSendReceive&) = delete;
  NeuronSendReceive& operator=(const NeuronSendReceive&) = delete;

  /// The most requests of one communicator at a time.
  int most_pending() const noexcept { return most_pending_; }
  AbsoluteCore core() const noexcept { return core_; }

  Communicator connect(const NeuronAddress& peer);
  Communicator accept(const NeuronAddress& peer);
  /// True once both sides are there. To be asked before anything is posted.
  bool is_connected(Communicator communicator, const NeuronDoing& doing);
  /// Starts a transfer. @return nothing  there are too many: try again when one has ended
  std::optional<Request> send(Communicator communicator, const NeuronPlace& place, std::size_t size,
                              const NeuronDoing& doing);
  std::optional<Request> receive(Communicator communicator, const NeuronPlace& place,
                                 std::size_t size, const NeuronDoing& doing);
  /// Asks whether a transfer has ended; never again once it has.
  Moved test(Request request, const NeuronDoing& doing);
  /// Makes all that was received, and has ended, visible in memory.
  void flush();
  /// Ends it, with everything that was connected, before the runtime is closed.
  /// @throws PeerLostError  something was not connected or has not ended.
  void close();

 private:
  std::optional<Request> started(int status, Request request, const NeuronDoing& doing,
                                 const char* call);
  template <class Doing>
  void require(int status, const Doing& doing, const char* call) {
    runtime_.require(status, doing, call, relative_);
  }

  NeuronRuntime& runtime_;
  const NeuronLibrary::SendReceive& calls_;
  RelativeCore relative_;
  AbsoluteCore core_;  // as all calls want it
  int most_pending_ = 0;
  bool open_ = false;
};

}  // namespace smp::d2d
