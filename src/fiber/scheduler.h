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

/// What a parked fiber waits for; shown by stall and deadlock reports. Texts must outlive the wait.
struct WaitReason {
  const char* what = "";
  const char* module_path = "";
  int peer = -1;           ///< pp_rank whose answer is awaited, or -1
  int microbatch = -1;     ///< or -1
  const char* group = "";  ///< ranks that do it together, as in "TP_GROUP {0, 2}"
};

/// Order of fibers that are ready: smaller first, ties in the order they became ready.
using Priority = std::int64_t;

/// What a fiber is doing, as reports tell it; it lives on the fiber's stack meanwhile.
class Activity {
 public:
  /// The fiber gets the thread (`running`), or leaves it or waits. Calls repeat.
  virtual void on_switch(bool running) noexcept = 0;
  /// Writes who and where it is ("rank 2, module encoder.block.3, microbatch 1"); may run in a
  /// signal handler.
  virtual void describe(char* text, std::size_t size) const noexcept = 0;

 protected:
  ~Activity() = default;
};

/// What travels with a fiber, beside its base::FiberLocals.
struct Fiber {
  Activity* activity = nullptr;
  Priority priority = 0;
  const WaitReason* waiting = nullptr;
  base::Nanoseconds waiting_since = 0;
};

/// The running fiber, or nullptr on a thread without a scheduler.
Fiber* current_fiber() noexcept;

/// One fiber waits, somebody on the same thread signals. A signal before the wait is kept.
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
  /// Like wait(), for fibers that have nothing to do: not in the waiting report. If what the fiber
  /// finds while it polls signals the event, it goes on without a switch, after those before it.
  void rest(const WaitReason& reason);
  bool waiting() const noexcept { return waiter_ != nullptr; }

 private:
  friend class Scheduler;
  void* waiter_ = nullptr;  // boost::fibers::context*
  bool set_ = false;
};

/// A callback the scheduler runs when no fiber is ready, and at each park.
/// It must not suspend and not throw; it returns true if it may have made a fiber ready.
using Poll = std::function<bool()>;

/// How long the thread spins, and how it sleeps, when nothing is ready.
struct IdlePolicy {
  base::Nanoseconds spin = 20 * base::kMicrosecond;  ///< busy polling after the last progress
  base::Nanoseconds first_sleep = 50 * base::kMicrosecond;
  base::Nanoseconds longest_sleep = 500 * base::kMicrosecond;
  bool oversubscribed = false;  ///< ranks outnumber cores: yield at once, then sleep
};

/// Deterministic mode: simulated time and a seeded choice among ready fibers (docs/design.md,
/// Ranks in one process).
class SimClock;

/// Runs the fibers of one OS thread. Install one per thread before any other use of this header;
/// it lives until the thread's end (LibTorch state is swapped lazily on every switch).
class Scheduler {
 public:
  /// Idempotent per thread.
  static Scheduler& install();
  /// The calling thread's scheduler; install() must have been called.
  static Scheduler& instance();
  static bool installed() noexcept;
  /// Says what the process does when a fault hits it, better than the fiber's Activity: threads of
  /// other kinds are hit too, and fibers between modules.
  static void set_description(Describe describe) noexcept;

  void set_idle_policy(const IdlePolicy& policy);
  /// Rung when something came that a poll finds: the thread sleeps there. nullptr: nothing rings,
  /// and polls look by themselves. Outlives its use.
  void set_doorbell(base::Doorbell* doorbell);
  /// Switches to simulated time (nullptr: back to the real clock). While set, ready fibers are
  /// drawn at random from `sim`'s generator and idling advances the simulated clock.
  void set_simulation(SimClock* sim);
  const base::Clock& clock() const noexcept;

  /// Called when, in simulated time, nothing is ready and no event is left. It must make a fiber
  /// ready. Without one the process ends with the waiting report.
  void set_deadlock_handler(std::function<void()> handler);

  /// Registers a poll; the returned handle removes it.
  [[nodiscard]] std::shared_ptr<void> add_poll(Poll poll);
  /// Runs every poll once, and timers that are due; true if one reported progress. Must not be
  /// called inside a poll.
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
  /// Lets those ready fibers run that go before `priority`. Whether there were any.
  bool yield_to_those_before(Priority priority);
  /// Whether waiting threads of this kind share their cores, so that they sleep rather than poll.
  bool oversubscribed() const noexcept;
  /// Whether time is simulated.
  bool simulated() const noexcept;
  /// Suspends the running fiber for `duration` nanoseconds of this scheduler's clock.
  void sleep_for(base::Nanoseconds duration, const WaitReason& reason);

  /// A parked fiber that waits for something, and for how long it has.
  struct Wait {
    std::string text;
    base::Nanoseconds age;
  };
  /// Oldest first.
  std::vector<Wait> waits() const;
  /// The same, a line for each.
  std::vector<std::string> waiting_report() const;
  /// Whether some fiber waits for something.
  bool any_waiting() const noexcept;
  /// Whether some fiber waits for a peer.
  bool any_waiting_for_peer() const noexcept;
  /// Fibers spawned and not finished.
  std::size_t live_fibers() const noexcept;

  struct State;

 private:
  friend class Event;
  Scheduler();
  ~Scheduler();
  void wait_for(Event& event, const WaitReason& reason);
  void suspend_until_set(Event& event);
  void spin_for(const Event& event, base::Nanoseconds start);
  std::unique_ptr<State> state_;
};

}  // namespace smp::fiber
