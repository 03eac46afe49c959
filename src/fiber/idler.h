// fiber/idler.h: what a thread does while none of its fibers is ready: spin, give way, sleep.
#pragma once

#include "base/clock.h"
#include "base/machine/doorbell.h"
#include "fiber/scheduler.h"

namespace smp::fiber {

/// Sleeps for `duration` nanoseconds, less than a second, without polling. Blocks the thread.
void sleep_briefly(base::Nanoseconds duration) noexcept;

/// Decides how an idle thread waits: it must leave the core to a busy one, and yet see a message
/// that comes soon at once.
class Idler {
 public:
  void set_policy(const IdlePolicy& policy) noexcept { policy_ = policy; }
  /// Sets the doorbell at which the thread sleeps, so that others can wake it; nullptr: nobody can.
  /// It must outlive its use here.
  void set_doorbell(base::Doorbell* doorbell) noexcept;
  bool oversubscribed() const noexcept { return policy_.oversubscribed; }
  /// The time for which a waiting fiber may poll by itself before it gives up the thread.
  base::Nanoseconds spin() const noexcept { return policy_.oversubscribed ? 0 : policy_.spin; }

  /// Reports progress: the next idle time begins anew.
  void progressed() noexcept {
    since_ = 0;
    if (armed_) disarm();
  }
  /// Reports that nothing moved until `now`: spins (returns at once), then yields, then sleeps ever
  /// longer. Before each sleep at a doorbell it arms that and returns once, because the caller must
  /// look for what came before.
  void back_off(base::Nanoseconds now) noexcept;

 private:
  void sleep() noexcept;
  void disarm() noexcept;

  IdlePolicy policy_;
  base::Doorbell* doorbell_ = nullptr;
  bool armed_ = false;
  base::Nanoseconds since_ = 0;  // 0: not idle
  base::Nanoseconds next_sleep_ = 0;
};

}  // namespace smp::fiber
