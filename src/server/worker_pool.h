// server/worker_pool.h: fibers that run requests, kept when idle (paper §4.2: IDLE, EXECUTING,
// PENDING). Threads: the rank's.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/fiber.h"

namespace smp::server {

class WorkerPool {
 public:
  using Task = std::function<void()>;

  /// `on_idle` runs when the last busy worker became idle.
  WorkerPool(base::RankContext& rank, std::size_t stack_bytes, std::function<void()> on_idle);
  /// Ends the idle workers; every worker must be idle or given up.
  ~WorkerPool();

  /// Runs `task` on a worker with `priority`. A StepAborted that leaves it is swallowed; any other
  /// exception ends the process. Safe in a poll.
  void launch(Task task, base::Priority priority);

  /// The calling worker is lost: its task swallows StepAborted for ever. Suspends it for good.
  [[noreturn]] void give_up();

  std::size_t busy() const noexcept { return busy_; }
  std::size_t created() const noexcept { return created_; }
  std::size_t given_up() const noexcept { return given_up_; }
  /// Most workers busy at once.
  std::size_t most_busy() const noexcept { return most_busy_; }

 private:
  struct Worker {
    Task task;
    base::Priority priority = 0;
    base::FiberLocals* fiber = nullptr;
    base::Event wake;
  };
  void run(Worker& worker);
  void run_task(Worker& worker);
  void became_idle();

  base::RankContext& rank_;
  const std::size_t stack_bytes_;
  std::function<void()> on_idle_;
  std::vector<Worker*> idle_;
  std::size_t busy_ = 0;
  std::size_t most_busy_ = 0;
  std::size_t created_ = 0;
  std::size_t alive_ = 0;
  std::size_t given_up_ = 0;
  bool closing_ = false;
};

}  // namespace smp::server
