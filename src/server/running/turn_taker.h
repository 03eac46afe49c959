// server/running/turn_taker.h: fibers of one rank give way to each other by the rule of
// schedule/yield_policy.h.
#pragma once

#include "fiber/scheduler.h"
#include "schedule/yield_policy.h"

namespace smp::server {

/// Threads: the rank's.
class TurnTaker {
 public:
  explicit TurnTaker(fiber::Scheduler& scheduler) : scheduler_(scheduler) {}

  /// The running fiber is about to compute: those that should go before it do so, and answers that
  /// are due are awaited for a moment. May suspend.
  void take_turn();
  /// The running fiber does next what nobody waits for: messages are looked at, and all that should
  /// go before it does. May suspend.
  void give_way();

 private:
  void give_way(base::Nanoseconds start, base::Nanoseconds patience);

  fiber::Scheduler& scheduler_;
  schedule::YieldPolicy policy_;
};

/// Waits for `event`, which a peer's answer signals: from then on the running fiber passes an
/// answer on, until it computes.
void await_answer(fiber::Event& event, const fiber::WaitReason& reason);

/// Gives the running fiber a place among those that are ready; it goes on passing an answer on.
void set_priority(fiber::Priority priority) noexcept;

}  // namespace smp::server
