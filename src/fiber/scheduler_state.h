// fiber/scheduler_state.h: what a fiber scheduler knows: clocks, polls, timers, and who waits.
// Private to the fiber scheduler.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "fiber/idler.h"
#include "fiber/scheduler.h"
#include "fiber/stack_pool.h"

namespace boost::fibers {
class context;
}

namespace smp::fiber {

class FiberAlgorithm;

struct Scheduler::State {
  base::SteadyClock steady;
  Idler idler;
  SimClock* simulation = nullptr;
  std::function<void()> on_deadlock;
  std::vector<std::shared_ptr<Poll>> polls;
  std::multimap<base::Nanoseconds, Event*> timers;  // real time only
  std::map<std::size_t, StackPool> stacks;          // by size; kept until the process ends
  std::vector<Fiber*> waiting;
  std::size_t live = 0;
  std::unordered_set<boost::fibers::context*> begun;  // of these, and not given up
  FiberAlgorithm* algorithm = nullptr;

  const base::Clock& clock() const noexcept;
  std::vector<Wait> waits() const;
  std::vector<std::string> waiting_report() const;

  // While nothing is ready.
  bool poll_all() noexcept;
  void idle_once() noexcept;
  /// Polls from a fiber that waits until its event is `set`, while no other fiber is ready and the
  /// idler would spin, so that an answer that comes soon costs no switch. Counted from `start`.
  void spin_until(const bool& set, base::Nanoseconds start) noexcept;
  /// Lets the thread end without the fibers that live: exit() was called, and they never go on.
  void abandon_fibers() noexcept;

 private:
  bool fire_timers() noexcept;
  void advance_simulation() noexcept;
};

}  // namespace smp::fiber
