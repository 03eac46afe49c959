// simulate/event_queue.h: what will happen in a simulated step, earliest first.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/clock.h"

namespace smp::simulate {

/// The order of events at one moment: messages on the network, then all ends and arrivals, then who
/// goes on, then who computes. So among simultaneous events none is "just missed".
enum class Moment : std::uint8_t { kLeaving, kComing, kArrival, kDispatch, kCompute };

struct Event {
  base::Nanoseconds time = 0;
  Moment moment = Moment::kArrival;
  std::uint64_t number = 0;  // ties go by creation
  int stage = 0;
  int fiber = -1;  // that a message reaches; -1: it is about the stage's thread
};

/// A binary heap; events that tie are taken in the order they were posted.
class EventQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  const Event& next() const noexcept { return heap_.front(); }

  /// Adds an event and returns its number.
  std::uint64_t post(base::Nanoseconds time, Moment moment, int stage, int fiber = -1) {
    heap_.push_back({time, moment, ++posted_, stage, fiber});
    std::push_heap(heap_.begin(), heap_.end(), later);
    return posted_;
  }

  Event take() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) noexcept {
    return std::tie(a.time, a.moment, a.number) > std::tie(b.time, b.moment, b.number);
  }

  std::vector<Event> heap_;
  std::uint64_t posted_ = 0;
};

}  // namespace smp::simulate
