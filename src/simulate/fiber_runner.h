// simulate/fiber_runner.h: what a fiber does when it has its stage's thread: it computes, gives
// way, asks another stage, answers, ends.
#pragma once

#include "simulate/bodies.h"
#include "simulate/host_cores.h"
#include "simulate/network.h"
#include "simulate/step_state.h"

namespace smp::simulate {

class FiberRunner {
 public:
  /// All arguments are referred to, so they outlive this.
  FiberRunner(StepState& step, Bodies& bodies, HostCores& cores, Network& network);

  /// Runs `fiber` until it computes, gives way, waits or ends.
  void proceed(int fiber);
  /// Tells that the computation that runs on `stage` is over; its fiber goes on.
  void finish_computing(int stage);

 private:
  bool goes_on(int fiber);
  void put_weights_off(int fiber);
  bool is_held(int fiber);
  bool gives_way(int fiber);
  bool compute(int fiber);
  base::Nanoseconds run_operation(const SimulatedFiber& fiber, const Operation& operation);
  base::Nanoseconds duration_of(const SimulatedFiber& fiber, const Operation& operation) const;
  base::Nanoseconds work_of(const SimulatedFiber& fiber, const Operation& operation) const;
  void ask(int fiber);
  std::int64_t parked_by(const SimulatedFiber& fiber, std::int64_t elsewhere) const;
  void start_task(int fiber, int callee);
  void answer(int fiber);
  bool begins_backward(int fiber);
  void send(int fiber, const Task::Travel& travel, int to);
  void travel_to(int from, int to, const Task::Travel& travel, base::Nanoseconds time);
  void record(SimulatedStage& stage) const;

  const Operation& next_operation(const SimulatedFiber& fiber) const noexcept {
    return step_.program.operations[fiber.operation];
  }
  void advance(SimulatedFiber& fiber) const noexcept {
    const Operation& done = next_operation(fiber);
    fiber.operation = fiber.is_forward() ? done.next : done.previous;
  }

  StepState& step_;
  Bodies& bodies_;
  HostCores& cores_;
  Network& network_;
  const base::Nanoseconds handling_;
};

}  // namespace smp::simulate
