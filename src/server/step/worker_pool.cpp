// server/step/worker_pool.cpp: the life of a worker fiber.
#include "server/step/worker_pool.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "base/check.h"
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
  if (!idle_.empty()) {
    auto* worker = idle_.back();
    idle_.pop_back();
    worker->task.emplace(std::move(task));
    worker->fiber->priority = priority;
    worker->wake.signal();
  } else {
    create(std::move(task), priority);
  }
  ++launched_;
  most_busy_ = std::max(most_busy_, ++busy_);
}

/// Makes a worker for `task`, which does not run before this returns.
void WorkerPool::create(WorkerTask&& task, fiber::Priority priority) {
  try {
    auto worker = std::make_shared<Worker>();
    worker->task.emplace(std::move(task));
    fiber::Scheduler::instance().spawn([this, worker] { live(*worker); }, slots_, stack_bytes_,
                                       priority);
  } catch (const std::bad_alloc&) {
    throw ResourceError(
        base::concat("there is no memory for the stack of another fiber, beside ", alive_,
                     " that live (fiber_stack_bytes = ", stack_bytes_,
                     "): lower fiber_stack_bytes or microbatches, or, with pipeline = interleaved, "
                     "active_microbatches; or let the process have more memory and mappings "
                     "(ulimit -v, vm.max_map_count)"));
  }
  ++created_;
  ++alive_;
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
