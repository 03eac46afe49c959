// server/running/turn_taker.h: fibers of one rank give way to each other by the rule of
// schedule/yield_policy.h.
#pragma once

#include "fiber/scheduler.h"
#include "schedule/yield_policy.h"

namespace smp::server {

/// Lets the fibers of one rank give way to each other. Threads: the rank's.
class TurnTaker {
 public:
  explicit TurnTaker(fiber::Scheduler& scheduler) : scheduler_(scheduler) {}

  /// Called when the running fiber is about to compute: fibers that should go before it do so, and
  /// answers that are due are awaited for a moment. May suspend.
  void take_turn();
  /// Called when the running fiber does next what nobody waits for: messages are received, and all
  /// fibers that should go before it do so. May suspend.
  void give_way();

 private:
  void give_way(base::Nanoseconds start, base::Nanoseconds patience);

  fiber::Scheduler& scheduler_;
  schedule::YieldPolicy policy_;
};

/// Suspends until `event`, which a peer's answer signals. From then on the running fiber counts as
/// passing an answer on, which goes first, until it computes.
void await_answer(fiber::Event& event, const fiber::WaitReason& reason);

/// Sets the priority of the running fiber. A fiber that passes an answer on still counts as such.
void set_priority(fiber::Priority priority) noexcept;

}  // namespace smp::server
