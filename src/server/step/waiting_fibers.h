// server/step/waiting_fibers.h: fibers that each wait for a number to have its turn.
// Threads: the rank's.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "fiber/scheduler.h"

namespace smp::server {

class WaitingFibers {
 public:
  /// Suspends the running fiber until `number` is woken.
  /// @throws UsageError  it cannot wait there (fiber::Event::wait); nobody waits then.
  void wait(int number, const fiber::WaitReason& reason) {
    fiber::Event turn;
    waiting_.emplace_back(number, &turn);
    const Leaving leaving{waiting_, &turn};
    turn.wait(reason);
  }
  /// Wakes the fibers for whose number `has_turn(number)` is true.
  template <class HasTurn>
  void wake(const HasTurn& has_turn) const {
    for (const auto& [number, turn] : waiting_) {
      if (has_turn(number)) turn->signal();
    }
  }
  void wake_all() const noexcept {
    for (const auto& [number, turn] : waiting_) turn->signal();
  }

 private:
  using Waiting = std::vector<std::pair<int, fiber::Event*>>;
  /// Removes an event, which lives on the waiting fiber's stack, when the wait ends, by an
  /// exception too.
  struct Leaving {
    Waiting& all;
    const fiber::Event* turn;
    ~Leaving() {
      std::erase_if(all, [this](const auto& waiting) { return waiting.second == turn; });
    }
  };

  Waiting waiting_;
};

}  // namespace smp::server
