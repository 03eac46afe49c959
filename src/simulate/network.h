// simulate/network.h: messages between nodes, whose bytes pass one port at each end, one message
// after the other.
#pragma once

#include <map>
#include <utility>

#include "simulate/step_state.h"

namespace smp::simulate {

/// Messages that pass two ports, each of which is busy while the bytes of a message pass it: first
/// the sender's, then, later by the latency of the network, the receiver's. A message that comes
/// meanwhile waits, in the order of coming; one that waits at the receiver's port does not hold up
/// the sender's. Alone, a message takes latency and bytes over bandwidth.
class Network {
 public:
  /// @param step  is referred to, so it outlives this
  explicit Network(StepState& step) : step_(step) {}

  /// Sends a message of `bytes` for `fiber`, which is ready to leave stage `from` at `time`.
  void send(int from, int fiber, std::int64_t bytes, base::Nanoseconds time);
  /// Handles an event of the network, Moment::kLeaving or kComing.
  void proceed(const Event& event);

 private:
  using Port = std::pair<int, int>;  // node, port
  static base::Nanoseconds pass(base::Nanoseconds& free_at, base::Nanoseconds now,
                                base::Nanoseconds duration);
  Port port_of(int stage) const;

  StepState& step_;
  std::map<Port, base::Nanoseconds> out_, in_;  // when each is free
};

}  // namespace smp::simulate
