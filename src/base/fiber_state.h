// base/fiber_state.h: what a fiber scheduler knows: clocks, polls, timers, and who waits. Private
// to the fiber scheduler.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fiber.h"
#include "base/idler.h"
#include "base/stack_pool.h"

namespace smp::base {

class FiberAlgorithm;

struct FiberScheduler::State {
  SteadyClock steady;
  Idler idler;
  SimClock* simulation = nullptr;
  std::function<void()> on_deadlock;
  std::vector<std::shared_ptr<Poll>> polls;
  std::multimap<Nanoseconds, Event*> timers;  // real time only
  std::map<std::size_t, StackPool> stacks;    // by size; kept until the process ends
  std::vector<FiberLocals*> waiting;
  Nanoseconds last_turn = 0;
  std::size_t live = 0;
  FiberAlgorithm* algorithm = nullptr;

  const Clock& clock() const noexcept;
  std::vector<std::string> waiting_report() const;

  // Nothing is ready.
  bool poll_all() noexcept;
  void idle_once() noexcept;

  // Turns.
  bool awaits_answers() const noexcept;
  bool turn_is_due(const FiberLocals& fiber) const noexcept;
  /// How long a turn that starts at `now` may wait for answers.
  Nanoseconds patience(Nanoseconds now) const noexcept;

 private:
  bool fire_timers() noexcept;
  void advance_simulation() noexcept;
};

}  // namespace smp::base
