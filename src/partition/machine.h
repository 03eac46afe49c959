// partition/machine.h: the stages as a plan and the simulator see them. Plain data.
#pragma once

#include <cstdint>
#include <vector>

namespace smp::partition {

/// Speed, memory and the price of messages. Times in seconds.
struct Machine {
  int stages = 1;
  /// Relative speed of each stage: 2 computes in half the traced time. Empty: all 1.
  std::vector<double> speeds;
  /// Bytes each stage may hold. Empty: no limit.
  std::vector<std::int64_t> memory;

  /// From the moment a message is sent until the peer could act on it.
  double latency = 10e-6;
  double bytes_per_second = 4e9;
  /// What the sender's and the receiver's thread each spend on a message.
  double handling = 5e-6;

  double speed(int stage) const { return speeds.empty() ? 1.0 : speeds[stage]; }
  double travel(std::int64_t bytes) const {
    return latency + static_cast<double>(bytes) / bytes_per_second;
  }
};

}  // namespace smp::partition
