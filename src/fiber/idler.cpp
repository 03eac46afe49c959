// fiber/idler.cpp: spin, yield, then sleep ever longer, at the doorbell if there is one.
#include "fiber/idler.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace smp::fiber {

void sleep_briefly(base::Nanoseconds duration) noexcept {
  const timespec pause{0, static_cast<long>(duration)};
  nanosleep(&pause, nullptr);
}

void Idler::back_off(base::Nanoseconds now) noexcept {
  if (since_ == 0) {
    since_ = now;
    next_sleep_ = policy_.first_sleep;
  }
  const auto idle_for = now - since_;
  if (idle_for < spin()) return;
  const auto yields_for = policy_.oversubscribed ? policy_.spin : 100 * policy_.spin;
  if (idle_for < yields_for) {
    sched_yield();
    return;
  }
  if (doorbell_ != nullptr && !armed_) {
    doorbell_->arm();
    armed_ = true;
    return;
  }
  sleep();
  next_sleep_ = std::min(2 * next_sleep_, policy_.longest_sleep);
}

void Idler::sleep() noexcept {
  if (doorbell_ == nullptr) return sleep_briefly(next_sleep_);
  doorbell_->wait(next_sleep_);
  armed_ = false;
}

void Idler::disarm() noexcept {
  doorbell_->disarm();
  armed_ = false;
}

void Idler::set_doorbell(base::Doorbell* doorbell) noexcept {
  if (armed_) disarm();
  doorbell_ = doorbell;
}

}  // namespace smp::fiber
