// fiber/scheduler.h: fibers of one OS thread, their waiting, and what belongs to each of them
// (paper §4.2; docs/design.md, Processes, threads, fibers). The only layer that calls Boost.Fiber.
// Everything here is used from the scheduler's own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fiber_local.h"
#include "base/machine/doorbell.h"
#include "fiber/fault_report.h"

namespace smp::fiber {

/// Describes the event that a parked fiber waits for, for stall and deadlock reports. The texts
/// must outlive the wait.
struct WaitReason {
  const char* what = "";
  const char* module_path = "";
  int peer = -1;           ///< pp_rank whose answer is awaited, or -1
  int microbatch = -1;     ///< or -1
  const char* group = "";  ///< the ranks that take part, as in "TP_GROUP {0, 2}"
  /// The call of the program in which it waits, and which every rank of `group` must make:
  /// "smp::step"
  const char* call = "";
};

/// The order of fibers that are ready: smaller first, ties in the order they became ready.
using Priority = std::int64_t;

/// Tells reports what a fiber is doing; it lives on the fiber's stack meanwhile.
class Activity {
 public:
  /// Called when the fiber gets the thread (`running`), and when it leaves it or waits. Calls may
  /// repeat.
  virtual void on_switch(bool running) noexcept = 0;
  /// Writes which rank it is and what it does ("rank 2, module encoder.block.3, microbatch 1"); may
  /// run in a signal handler.
  virtual void describe(char* text, std::size_t size) const noexcept = 0;

 protected:
  ~Activity() = default;
};

/// The data that travel with a fiber, beside its base::FiberLocals.
struct Fiber {
  Activity* activity = nullptr;
  Priority priority = 0;
  const WaitReason* waiting = nullptr;
  base::Nanoseconds waiting_since = 0;
};

/// Returns the running fiber, or nullptr on a thread without a scheduler.
Fiber* current_fiber() noexcept;

/// A wake-up for one waiting fiber, signalled on the same thread. A signal before the wait is kept.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void signal() noexcept;
  /// Suspends the running fiber until signal(). `reason` must outlive the wait. The fiber polls by
  /// itself while no other is ready (IdlePolicy::spin).
  /// @throws UsageError  inside at::parallel_for.
  void wait(const WaitReason& reason);
  /// Waits as wait() does, for fibers that have nothing to do: they do not appear in the waiting
  /// report. If a poll that the fiber runs itself signals the event, it goes on without a switch,
  /// after the ready fibers that go before it.
  void rest(const WaitReason& reason);
  bool waiting() const noexcept { return waiter_ != nullptr; }

 private:
  void suspend_until_set();

  void* waiter_ = nullptr;  // boost::fibers::context*
  bool set_ = false;
};

/// A callback the scheduler runs when no fiber is ready, and at each park.
/// It must not suspend and not throw; it returns true if it may have made a fiber ready.
using Poll = std::function<bool()>;

/// The policy of an idle thread: how long it spins and how it sleeps while nothing is ready.
struct IdlePolicy {
  base::Nanoseconds spin = 20 * base::kMicrosecond;  ///< busy polling after the last progress
  base::Nanoseconds first_sleep = 50 * base::kMicrosecond;
  base::Nanoseconds longest_sleep = 500 * base::kMicrosecond;
  bool oversubscribed = false;  ///< ranks outnumber cores: yield at once, then sleep
};

/// The clock of deterministic mode: simulated time and a seeded choice among ready fibers
/// (docs/design.md, Ranks in one process).
class SimClock;

/// Runs the fibers of one OS thread. Install one per thread before any other use of this header;
/// it lives until the thread's end (LibTorch state is swapped lazily on every switch).
class Scheduler {
 public:
  /// Installs the scheduler of the calling thread and returns it. Idempotent.
  static Scheduler& install();
  /// Returns the calling thread's scheduler; install() must have been called.
  static Scheduler& instance();
  static bool installed() noexcept;
  /// Sets how fault reports describe the process, in preference to the fiber's Activity: faults
  /// also hit threads of other kinds, and fibers between modules.
  static void set_description(Describe describe) noexcept;

  void set_idle_policy(const IdlePolicy& policy);
  /// Sets the doorbell at which the idle thread sleeps; it is rung when something came that a poll
  /// finds. nullptr: nothing rings, and polls look by themselves. It must outlive its use here.
  void set_doorbell(base::Doorbell* doorbell);
  /// Switches to simulated time (nullptr: back to the real clock). While set, ready fibers are
  /// drawn at random from `sim`'s generator and idling advances the simulated clock.
  void set_simulation(SimClock* sim);
  const base::Clock& clock() const noexcept;

  /// Sets the function that is called when, in simulated time, nothing is ready and no event is
  /// left. It must make a fiber ready. Without one the process ends with the waiting report.
  void set_deadlock_handler(std::function<void()> handler);

  /// Registers a poll; the returned handle removes it.
  [[nodiscard]] std::shared_ptr<void> add_poll(Poll poll);
  /// Runs every poll once, and the timers that are due. Returns true if one reported progress. Must
  /// not be called inside a poll.
  bool poll_all() noexcept;

  /// Starts `body` on a new fiber with a guarded stack of `stack_bytes`; it becomes ready, it does
  /// not run yet. An exception leaving `body` ends the process.
  /// @param slots     its base::FiberLocals
  /// @param priority  smaller goes first
  /// @throws std::bad_alloc  there is no memory for its stack.
  void spawn(std::function<void()> body, const base::FiberSlots& slots, std::size_t stack_bytes,
             Priority priority = 0);
  /// Suspends the running fiber for good; the thread may end without it. Its stack, and what its
  /// frames own, is lost.
  [[noreturn]] void give_up();
  /// Lets every other ready fiber run before this one.
  void yield();
  /// Lets the ready fibers run that go before `priority`. Returns true if there were any.
  bool yield_to_those_before(Priority priority);
  /// True if waiting threads of this kind share their cores, so that they sleep rather than poll.
  bool oversubscribed() const noexcept;
  /// True if time is simulated.
  bool simulated() const noexcept;
  /// Suspends the running fiber for `duration` nanoseconds of this scheduler's clock.
  void sleep_for(base::Nanoseconds duration, const WaitReason& reason);

  /// A parked fiber that waits for something, and for how long it has.
  struct Wait {
    std::string text;
    base::Nanoseconds age;
  };
  /// Returns the waits of all waiting fibers, the oldest first.
  std::vector<Wait> waits() const;
  /// Returns the same as text, one line for each wait.
  std::vector<std::string> waiting_report() const;
  /// True if some fiber waits for something; rest() does not count.
  bool any_waiting() const noexcept;
  /// True if some fiber waits for a peer's answer.
  bool any_waiting_for_peer() const noexcept;
  /// Returns the number of fibers spawned and not finished.
  std::size_t live_fibers() const noexcept;

  struct State;
  class EndOfThread;

 private:
  friend class Event;
  Scheduler();
  ~Scheduler();
  std::unique_ptr<State> state_;
};

}  // namespace smp::fiber
