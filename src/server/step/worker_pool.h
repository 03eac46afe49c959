// server/step/worker_pool.h: fibers that run bodies and requests, kept when idle (paper §4.2: IDLE,
// EXECUTING, PENDING). An idle worker polls on its own stack, so that what it finds there starts
// without a switch of fibers. Threads: the rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fiber/scheduler.h"
#include "server/admission/tasks.h"

namespace smp::server {

class WorkerPool {
 public:
  /// Runs a task on a worker. A StepAborted that leaves it is swallowed; any other exception ends
  /// the process.
  using Run = std::function<void(WorkerTask&& task)>;

  /// `on_idle` runs when the last busy worker became idle.
  WorkerPool(std::size_t stack_bytes, Run run, std::function<void()> on_idle);
  /// Ends the idle workers; every worker must be idle or given up.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Workers that start from now on get the calling fiber's base::FiberLocals.
  void inherit_fiber_locals() { slots_ = *base::current_fiber_slots(); }

  /// Runs `task` on a worker with `priority`. Safe in a poll.
  /// @throws ResourceError  there is no memory for another worker; nothing has changed then.
  void launch(WorkerTask task, fiber::Priority priority);

  /// Suspends the calling worker for good, because its task swallows StepAborted for ever.
  [[noreturn]] void give_up();

  /// The number of tasks launched so far.
  std::uint64_t launched() const noexcept { return launched_; }
  std::size_t busy() const noexcept { return busy_; }
  std::size_t created() const noexcept { return created_; }
  std::size_t given_up() const noexcept { return given_up_; }
  /// The most workers that were busy at once.
  std::size_t most_busy() const noexcept { return most_busy_; }

 private:
  struct Worker {
    std::optional<WorkerTask> task;
    fiber::Fiber* fiber = nullptr;
    fiber::Event wake;
  };
  void create(WorkerTask&& task, fiber::Priority priority);
  void live(Worker& worker);
  void run_task(Worker& worker);
  void became_idle();

  const std::size_t stack_bytes_;
  const Run run_;
  const std::function<void()> on_idle_;
  base::FiberSlots slots_{};
  std::vector<Worker*> idle_;  // the one that polls, if one does, is last
  std::uint64_t launched_ = 0;
  std::size_t busy_ = 0;
  std::size_t most_busy_ = 0;
  std::size_t created_ = 0;
  std::size_t alive_ = 0;
  std::size_t given_up_ = 0;
  bool closing_ = false;
};

}  // namespace smp::server
