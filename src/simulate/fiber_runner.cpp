// simulate/fiber_runner.cpp: follows the module server's calls and backward passes, with the yield
// policy that the runtime has.
#include "simulate/fiber_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "simulate/noise.h"

namespace smp::simulate {

using base::Nanoseconds;

FiberRunner::FiberRunner(StepState& step, Bodies& bodies, HostCores& cores)
    : step_(step),
      bodies_(bodies),
      cores_(cores),
      handling_(std::llround(step.machine.handling * base::kSecond)) {}

void FiberRunner::proceed(int fiber) {
  auto& own = step_.fibers[fiber];
  step_.stage_of(own).add_live(-std::exchange(own.parked_bytes, 0));
  for (;;) {
    if (own.operation < 0) {
      if (own.task != 0) return answer(fiber);
      if (!bodies_.goes_on_to_backward(fiber)) return;
    } else if (next_operation(own).callee >= 0) {
      return ask(fiber);
    } else if (gives_way(fiber) || compute(fiber)) {
      return;
    }
  }
}

// ---- yield policy ------------------------------------------------------------------------------

/// Where the runtime takes a turn: at routed calls, and before the first node of a backward pass
/// that follows an answer.
bool FiberRunner::gives_way(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  if (std::exchange(own.gave_way, false)) {
    stage.yield_policy.end(step_.now);
    return false;
  }
  const bool passes_answer_on = schedule::is_passing_on(own.priority);
  if (own.backward ? !passes_answer_on : !next_operation(own).may_yield) return false;
  const auto turn = stage.yield_policy.begin(passes_answer_on, step_.now, stage.awaiting > 0, true);
  if (!turn.due) return false;
  own.priority = schedule::without_passing_on(own.priority);
  step_.take_from_inbox(stage, false);
  const bool first = !stage.ready.has_before(own.priority);
  if (turn.patience == 0 && first && !step_.more_happens_now(Moment::kCompute)) {
    stage.yield_policy.end(step_.now);
    return false;
  }
  own.gave_way = true;
  stage.waits_until = step_.now + turn.patience;
  // Before its equals, which it does not give way to.
  stage.ready.push_first(fiber, own.priority);
  if (turn.patience > 0) {
    step_.events.post(stage.waits_until, Moment::kDispatch, step_.task_of(own).stage);
  }
  return true;
}

// ---- computing ---------------------------------------------------------------------------------

/// Runs operations up to the next request, end or turn. False if that takes no time.
bool FiberRunner::compute(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  const bool may_yield =
      !own.backward && (schedule::is_passing_on(own.priority) || stage.awaiting > 0);
  const auto unpacking = std::exchange(own.unpacks, false) ? handling_ : 0;
  Nanoseconds work = 0;
  do {
    work += run_operation(own, next_operation(own));
    advance(own);
  } while (own.operation >= 0 && next_operation(own).callee < 0 &&
           !(may_yield && next_operation(own).may_yield));
  if (unpacking + work == 0) return false;
  stage.busy += work;
  stage.running = fiber;
  stage.since = step_.now + unpacking;
  stage.work = work;
  cores_.begin(step_.task_of(own).stage, unpacking + work);
  return true;
}

void FiberRunner::finish_computing(int index) {
  auto& stage = step_.stages[index];
  if (step_.options.record && stage.work > 0) record(stage);
  cores_.end(index);
  proceed(std::exchange(stage.running, -1));
}

/// Its activations become live, or are let go of. Returns how long it takes.
Nanoseconds FiberRunner::run_operation(const SimulatedFiber& fiber, const Operation& operation) {
  auto& stage = step_.stage_of(fiber);
  if (fiber.backward) {
    stage.need(operation.gradient_bytes);
    stage.add_live(-operation.activation_bytes);
  } else if (!step_.options.forward_only) {
    stage.add_live(operation.activation_bytes);
  }
  return duration_of(fiber, operation);
}

/// The noise depends on seed, microbatch and operation only, so that it is the same in any order.
Nanoseconds FiberRunner::duration_of(const SimulatedFiber& fiber,
                                     const Operation& operation) const {
  const auto duration = fiber.backward ? operation.backward : operation.forward;
  if (step_.options.jitter == 0) return duration;
  const auto index = static_cast<std::uint64_t>(&operation - step_.program.operations.data());
  auto key = mix(step_.options.seed) + static_cast<std::uint64_t>(fiber.microbatch);
  key = mix(key) + 2 * index + (fiber.backward ? 1 : 0);
  const double factor = std::max(0.0, 1 + step_.options.jitter * noise(key));
  return std::llround(factor * static_cast<double>(duration));
}

/// Joined with the span before if that is of the same work and nothing was in between.
void FiberRunner::record(SimulatedStage& stage) const {
  auto& spans = stage.spans;
  const auto& fiber = step_.fibers[stage.running];
  const auto phase = fiber.backward ? schedule::Phase::kBackward : schedule::Phase::kForward;
  const int module = step_.task_of(fiber).module;
  if (spans.empty() || spans.back().end != stage.since || spans.back().module != module ||
      spans.back().microbatch != fiber.microbatch || spans.back().phase != phase) {
    spans.push_back({stage.since, 0, 0, fiber.microbatch, module, phase});
  }
  spans.back().end = step_.now;
  spans.back().cpu += stage.work;
}

// ---- messages ----------------------------------------------------------------------------------

/// Sends the request at which the fiber stands, and waits for the answer.
void FiberRunner::ask(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  const auto& request = next_operation(own);
  const auto& task = step_.program.tasks[request.callee];
  const int callee = step_.sibling(fiber, request.callee);
  auto& other = step_.fibers[callee];
  advance(own);
  other.operation = own.backward ? task.last : task.first;
  other.backward = own.backward;
  other.set_priority(bodies_.priority_of(other));
  send(fiber, own.backward ? task.back : task.there, callee);
  own.awaiting = true;
  own.priority = schedule::passing_on(own.priority);
  own.parked_bytes = own.backward                 ? request.gradient_bytes
                     : step_.options.forward_only ? 0
                                                  : request.activation_bytes;
  stage.add_live(own.parked_bytes);
  ++stage.awaiting;
  stage.polls = true;
}

/// Sends what the fiber was asked for, and ends.
void FiberRunner::answer(int fiber) {
  const auto& own = step_.fibers[fiber];
  const auto& task = step_.task_of(own);
  send(fiber, own.backward ? task.there : task.back, step_.sibling(fiber, task.caller));
}

/// Takes the thread of the sender for a while, then travels.
void FiberRunner::send(int fiber, const Task::Travel& travel, int to) {
  auto& own = step_.fibers[fiber];
  auto& receiver = step_.fibers[to];
  const int from = step_.task_of(own).stage;
  const auto handling = std::exchange(own.unpacks, false) ? 2 * handling_ : handling_;
  const auto free_at = step_.now + handling;
  receiver.unpacks = true;
  receiver.arriving_bytes = step_.options.forward_only ? 0 : travel.bytes;
  ++step_.stages[from].messages;
  step_.events.post(free_at + travel.duration, Moment::kArrival, step_.task_of(receiver).stage, to);
  if (handling == 0) return;
  step_.stages[from].free_at = free_at;
  step_.events.post(free_at, Moment::kDispatch, from);
}

}  // namespace smp::simulate
