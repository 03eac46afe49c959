// fiber/sim_clock.cpp: the event queue of simulated time.
#include "fiber/sim_clock.h"

#include <algorithm>
#include <utility>

namespace smp::fiber {

void SimClock::at(base::Nanoseconds when, std::function<void()> action) {
  pending_.push({std::max(when, now_), order_++, std::move(action)});
}

bool SimClock::advance() {
  if (pending_.empty()) return false;
  // top() is const because changing the key would break the heap; the element leaves it next.
  auto next = std::move(const_cast<Pending&>(pending_.top()));
  pending_.pop();
  now_ = next.when;
  trace(static_cast<std::uint64_t>(next.when));
  trace(next.order);
  next.action();
  return true;
}

void SimClock::trace(std::uint64_t value) noexcept { hash_ = (hash_ ^ value) * 0x100000001b3ull; }

}  // namespace smp::fiber
