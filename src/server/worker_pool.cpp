// server/worker_pool.cpp: the life of a worker fiber.
#include "server/worker_pool.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "smp/error.h"

namespace smp::server {

WorkerPool::WorkerPool(std::size_t stack_bytes, Run run, std::function<void()> on_idle)
    : stack_bytes_(stack_bytes), run_(std::move(run)), on_idle_(std::move(on_idle)) {
  idle_.reserve(64);
}

WorkerPool::~WorkerPool() {
  closing_ = true;
  for (auto* worker : idle_) worker->wake.signal();
  while (alive_ > given_up_) fiber::Scheduler::instance().yield();
}

void WorkerPool::launch(WorkerTask task, fiber::Priority priority) {
  ++launched_;
  most_busy_ = std::max(most_busy_, ++busy_);
  if (!idle_.empty()) {
    auto* worker = idle_.back();
    idle_.pop_back();
    worker->task.emplace(std::move(task));
    worker->fiber->priority = priority;
    worker->wake.signal();
    return;
  }
  ++created_;
  ++alive_;
  auto worker = std::make_shared<Worker>();
  worker->task.emplace(std::move(task));
  fiber::Scheduler::instance().spawn([this, worker] { live(*worker); }, slots_, stack_bytes_,
                                     priority);
}

void WorkerPool::live(Worker& worker) {
  static constexpr fiber::WaitReason kIdle{"work", "", -1, -1};
  worker.fiber = fiber::current_fiber();
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
    run_(*std::move(worker.task));
  } catch (const StepAborted&) {
    // What unwinds a parked fiber; the failure itself is reported by the step.
  }
  worker.task.reset();
}

void WorkerPool::became_idle() {
  if (--busy_ == 0) on_idle_();
}

void WorkerPool::give_up() {
  ++given_up_;
  became_idle();
  fiber::Scheduler::instance().give_up();
}

}  // namespace smp::server
