// simulate/network.h: messages between nodes, whose bytes pass one port at each end, one message
// after the other.
#pragma once

#include <map>
#include <utility>

#include "simulate/step_state.h"

namespace smp::simulate {

/// A port is busy while the bytes of a message pass it: first the sender's, then, as much later as
/// the network is far, the receiver's. Who comes meanwhile waits, in the order of coming; what
/// waits at the receiver's does not hold up the sender's. Alone, a message takes latency and bytes
/// over bandwidth.
class Network {
 public:
  /// Refers to `step`.
  explicit Network(StepState& step) : step_(step) {}

  /// A message of `bytes` for `fiber` is ready to leave stage `from` at `time`.
  void send(int from, int fiber, std::int64_t bytes, base::Nanoseconds time);
  /// An event of the network, Moment::kLeaving or kComing.
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
