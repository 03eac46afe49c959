// simulate/network.cpp: two events a message: its first byte at the sender's port, and at the
// receiver's.
#include "simulate/network.h"

#include <algorithm>
#include <cmath>

namespace smp::simulate {

using base::Nanoseconds;

void Network::send(int from, int fiber, std::int64_t bytes, Nanoseconds time) {
  const double passing = static_cast<double>(bytes) / step_.machine.network.bytes_per_second;
  step_.fibers[fiber].passing = std::llround(passing * base::kSecond);
  step_.events.post(time, Moment::kLeaving, from, fiber);
}

void Network::proceed(const Event& event) {
  const auto& receiver = step_.fibers[event.fiber];
  const int to = step_.task_of(receiver).stage;
  if (event.moment == Moment::kLeaving) {
    const auto begin = pass(out_[port_of(event.stage)], event.time, receiver.passing);
    const auto latency = std::llround(step_.machine.network.latency * base::kSecond);
    step_.events.post(begin + latency, Moment::kComing, to, event.fiber);
  } else {
    const auto begin = pass(in_[port_of(to)], event.time, receiver.passing);
    step_.events.post(begin + receiver.passing, Moment::kArrival, to, event.fiber);
  }
}

/// Takes a port for `duration` as soon as it is free. Returns when that begins.
Nanoseconds Network::pass(Nanoseconds& free_at, Nanoseconds now, Nanoseconds duration) {
  const auto begin = std::max(free_at, now);
  free_at = begin + duration;
  return begin;
}

Network::Port Network::port_of(int stage) const {
  const auto& place = step_.machine.places[stage];
  return {place.node, place.port};
}

}  // namespace smp::simulate
