// server/worker_pool.cpp: the life of a worker fiber.
#include "server/worker_pool.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "smp/error.h"

namespace smp::server {

WorkerPool::WorkerPool(base::RankContext& rank, std::size_t stack_bytes,
                       std::function<void()> on_idle)
    : rank_(rank), stack_bytes_(stack_bytes), on_idle_(std::move(on_idle)) {
  idle_.reserve(64);
}

WorkerPool::~WorkerPool() {
  closing_ = true;
  for (auto* worker : idle_) worker->wake.signal();
  while (alive_ > given_up_) base::FiberScheduler::instance().yield();
}

void WorkerPool::launch(Task task, base::Priority priority) {
  most_busy_ = std::max(most_busy_, ++busy_);
  if (!idle_.empty()) {
    auto* worker = idle_.back();
    idle_.pop_back();
    worker->task = std::move(task);
    worker->fiber->priority = priority;
    worker->wake.signal();
    return;
  }
  ++created_;
  ++alive_;
  auto worker = std::make_shared<Worker>();
  worker->task = std::move(task);
  worker->priority = priority;
  base::FiberScheduler::instance().spawn([this, worker] { run(*worker); }, &rank_, stack_bytes_,
                                         priority);
}

void WorkerPool::run(Worker& worker) {
  static constexpr base::WaitReason kIdle{"work", "", -1, -1};
  worker.fiber = base::current_fiber();
  do {
    run_task(worker);
    became_idle();
    idle_.push_back(&worker);
    worker.wake.rest(kIdle);
  } while (!closing_);
  --alive_;
}

void WorkerPool::run_task(Worker& worker) {
  try {
    worker.task();
  } catch (const StepAborted&) {
    // What unwinds a parked fiber; the failure itself is reported by the step.
  }
  worker.task = nullptr;
  worker.fiber->execution = nullptr;
  worker.fiber->aborted_calls = 0;
  worker.fiber->passing_on = false;
}

void WorkerPool::became_idle() {
  if (--busy_ == 0) on_idle_();
}

void WorkerPool::give_up() {
  ++given_up_;
  became_idle();
  base::FiberScheduler::instance().give_up();
}

}  // namespace smp::server
