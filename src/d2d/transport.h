// d2d/transport.h: moves frames (a header and tensors) between ranks, whatever the wire.
// Paper: §6, App. G. Threads: the rank's thread only; nothing here suspends a fiber.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace smp::d2d {

/// What one rank sends to another. `header` is opaque here; `tensors` may be undefined, of any
/// dtype, shape and strides (they arrive contiguous, without autograd history).
struct Frame {
  std::string header;
  std::vector<at::Tensor> tensors;
};

/// Tensors up to this size travel inside the control frame, larger ones on the data plane (§4.10).
inline constexpr std::size_t kInlineBytes = 4096;

/// Counters since construction, for tests, formulas and the run's report.
struct TransportCounters {
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
  std::uint64_t header_bytes_sent = 0;
  std::uint64_t tensor_bytes_sent = 0;
};

/// Point-to-point frames between this rank and its peers. Frames without data-plane tensors are
/// delivered in the order sent for each ordered pair of ranks; a frame that waits for its tensors
/// may be overtaken. No order holds between different pairs.
/// Every implementation passes tests/d2d/transport_contract.h.
class Transport {
 public:
  /// Called from poll() for each complete frame. Must not throw and not suspend.
  using Receiver = std::function<void(int source, Frame&& frame)>;
  /// Called from poll() when something went wrong that no caller waits for (a tensor that was
  /// changed in flight, a peer that is gone).
  using FailureHandler = std::function<void(const std::string& what)>;

  virtual ~Transport() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Starts sending and returns at once. Large tensors leave without a copy: the transport keeps
  /// them alive, and reports one whose `_version()` moved before it had left.
  /// @throws UsageError  `peer` is out of range or this rank; a tensor is not on the CPU.
  virtual void send(int peer, Frame frame) = 0;

  /// Advances sends and receives, hands complete frames to the receiver; true if anything moved.
  /// Independent of LibTorch's thread-local state (inference mode and friends).
  virtual bool poll() = 0;

  /// No send of this rank is in flight.
  virtual bool drained() const noexcept = 0;

  void set_receiver(Receiver receiver) { receiver_ = std::move(receiver); }
  void set_failure_handler(FailureHandler handler) { on_failure_ = std::move(handler); }
  const TransportCounters& counters() const noexcept { return counters_; }

 protected:
  Receiver receiver_;
  FailureHandler on_failure_;
  TransportCounters counters_;
};

}  // namespace smp::d2d
