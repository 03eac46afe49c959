// base/idler.h: what a thread does while none of its fibers is ready: spin, give way, sleep.
#pragma once

#include "base/clock.h"
#include "base/fiber.h"

namespace smp::base {

/// Sleeps for less than a second, without polling.
void sleep_briefly(Nanoseconds duration) noexcept;

/// An idle rank must leave the core to a busy one, and yet see a message that comes soon at once.
class Idler {
 public:
  void set_policy(const IdlePolicy& policy) noexcept { policy_ = policy; }
  bool oversubscribed() const noexcept { return policy_.oversubscribed; }
  /// How long a waiting fiber may poll by itself before it gives up the thread.
  Nanoseconds spin() const noexcept { return policy_.oversubscribed ? 0 : policy_.spin; }

  /// Something moved: the next idleness begins anew.
  void progressed() noexcept { since_ = 0; }
  /// Nothing moved, and it is `now`: spins (returns at once), yields, then sleeps ever longer.
  void back_off(Nanoseconds now) noexcept;

 private:
  IdlePolicy policy_;
  Nanoseconds since_ = 0;  // 0: not idle
  Nanoseconds next_sleep_ = 0;
};

}  // namespace smp::base
