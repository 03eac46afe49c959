// base/fiber.h: fibers of one OS thread, their waiting, and what belongs to each of them (§4.2).
// The only layer that calls Boost.Fiber. Everything here is used from the scheduler's own thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"

namespace smp::base {

/// What a parked fiber waits for; shown by stall and deadlock reports. `what` and `module_path`
/// must outlive the wait.
struct WaitReason {
  const char* what = "";
  const char* module_path = "";
  int peer = -1;        ///< pp_rank whose answer is awaited, or -1
  int microbatch = -1;  ///< or -1
};

/// Order of fibers that are ready: after those that pass an answer on, smaller first, ties in the
/// order they became ready.
using Priority = std::int64_t;

/// The rank a fiber works for. Several ranks may share one OS thread (local transport): then
/// "current rank" belongs to the fiber.
class RankContext {
 public:
  virtual ~RankContext() = default;
  /// A fiber with an execution gets the thread (`running`), or leaves it or waits. Calls repeat.
  virtual void on_switch(void* execution, bool running) noexcept = 0;
  /// Writes who and where a fiber is ("rank 2, module encoder.block.3, microbatch 1"); may run in a
  /// signal handler.
  virtual void describe(const void* execution, char* text, std::size_t size) const noexcept = 0;

  void* runtime = nullptr;  ///< set by the top layer, opaque here
};

/// What travels with a fiber. `rank` and `execution` are owned by the layers above.
struct FiberLocals {
  RankContext* rank = nullptr;
  void* execution = nullptr;  ///< server layer: the module execution this fiber runs
  Priority priority = 0;
  bool passing_on = false;  ///< a peer answered, and it has not computed since: it goes first
  int aborted_calls = 0;    ///< how often StepAborted was thrown at this fiber
  const WaitReason* waiting = nullptr;
  Nanoseconds waiting_since = 0;
};

/// Locals of the running fiber, or nullptr on a thread without a scheduler.
FiberLocals* current_fiber() noexcept;

/// The current rank of the running fiber, or nullptr.
inline RankContext* current_rank() noexcept {
  auto* fiber = current_fiber();
  return fiber == nullptr ? nullptr : fiber->rank;
}

/// One fiber waits, somebody on the same thread signals. A signal before the wait is kept.
class Event {
 public:
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void signal() noexcept;
  /// Suspends the running fiber until signal(). Throws UsageError inside at::parallel_for.
  void wait(const WaitReason& reason);
  /// Like wait(), for fibers that have nothing to do: no polling, not in the waiting report.
  void rest(const WaitReason& reason);
  bool waiting() const noexcept { return waiter_ != nullptr; }

 private:
  friend class FiberScheduler;
  void* waiter_ = nullptr;  // boost::fibers::context*
  bool set_ = false;
};

/// A callback the scheduler runs when no fiber is ready, and at each park.
/// It must not suspend and not throw; it returns true if it may have made a fiber ready.
using Poll = std::function<bool()>;

/// How long the thread spins, and how it sleeps, when nothing is ready.
struct IdlePolicy {
  Nanoseconds spin = 20 * kMicrosecond;  ///< busy polling after the last progress
  Nanoseconds first_sleep = 50 * kMicrosecond;
  Nanoseconds longest_sleep = 500 * kMicrosecond;
  bool oversubscribed = false;  ///< ranks outnumber cores: yield at once, then sleep
};

/// Deterministic mode: simulated time and a seeded choice among ready fibers (§4.4).
class SimClock;

/// Runs the fibers of one OS thread. Install one per thread before any other use of this header;
/// it lives until the thread's end (LibTorch state is swapped lazily on every switch).
class FiberScheduler {
 public:
  /// Idempotent per thread.
  static FiberScheduler& install();
  /// The calling thread's scheduler; install() must have been called.
  static FiberScheduler& instance();
  static bool installed() noexcept;

  void set_idle_policy(const IdlePolicy& policy);
  /// Switches to simulated time (nullptr: back to the real clock). While set, ready fibers are
  /// drawn at random from `sim`'s generator and idling advances the simulated clock.
  void set_simulation(SimClock* sim);
  const Clock& clock() const noexcept;

  /// Called when, in simulated time, nothing is ready and no event is left. It must make a fiber
  /// ready. Without one the process ends with the waiting report.
  void set_deadlock_handler(std::function<void()> handler);

  /// Registers a poll; the returned handle removes it.
  [[nodiscard]] std::shared_ptr<void> add_poll(Poll poll);
  /// Runs every poll once; true if one reported progress.
  bool poll_all() noexcept;

  /// Starts `body` on a new fiber with a guarded stack of `stack_bytes`; it becomes ready, it does
  /// not run yet. An exception leaving `body` ends the process.
  void spawn(std::function<void()> body, RankContext* rank, std::size_t stack_bytes,
             Priority priority = 0);
  /// Suspends the running fiber for good; the thread may end without it.
  [[noreturn]] void give_up();
  /// Lets every other ready fiber run before this one.
  void yield();
  /// The running fiber is about to compute. If it just got an answer of a peer, or has computed for
  /// a while, those that should go before it do so, and answers that are due are awaited for a
  /// moment: what comes too late has to wait until the computation is over.
  void take_turn();
  /// Suspends the running fiber for `duration` of this scheduler's clock.
  void sleep_for(Nanoseconds duration, const WaitReason& reason);

  /// One line per parked fiber that waits for something, oldest first.
  std::vector<std::string> waiting_report() const;
  /// Whether some fiber waits for something.
  bool any_waiting() const noexcept;
  /// Fibers spawned and not finished.
  std::size_t live_fibers() const noexcept;

  struct State;

 private:
  friend class Event;
  FiberScheduler();
  ~FiberScheduler();
  void wait_for(Event& event, const WaitReason& reason);
  void suspend_until_set(Event& event);
  void spin_for(const Event& event);
  std::unique_ptr<State> state_;
};

}  // namespace smp::base
