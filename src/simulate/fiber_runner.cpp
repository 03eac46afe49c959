// simulate/fiber_runner.cpp: follows the module server's calls and backward passes, with the yield
// policy that the runtime has.
#include "simulate/fiber_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "simulate/noise.h"

namespace smp::simulate {

using base::Nanoseconds;

FiberRunner::FiberRunner(StepState& step, Bodies& bodies, HostCores& cores, Network& network)
    : step_(step),
      bodies_(bodies),
      cores_(cores),
      network_(network),
      handling_(std::llround(step.machine.handling * base::kSecond)) {}

void FiberRunner::proceed(int fiber) {
  auto& own = step_.fibers[fiber];
  if (is_held(fiber)) return;
  step_.stage_of(own).tally.memory.add(-std::exchange(own.parked_bytes, 0), step_.now);
  for (;;) {
    if (own.operation < 0) {
      if (!goes_on(fiber)) return;
    } else if (next_operation(own).callee >= 0) {
      if (!own.is_weights()) return ask(fiber);
      advance(own);
    } else if (gives_way(fiber) || compute(fiber)) {
      return;
    }
  }
}

/// Ends a phase of `fiber`. Returns true if it is in another one and may go on at once.
bool FiberRunner::goes_on(int fiber) {
  auto& own = step_.fibers[fiber];
  const bool body = step_.task_of(own).is_body();
  const bool last_phase = !own.is_forward() || step_.options.forward_only;
  if (body && !last_phase) return bodies_.goes_on_to_backward(fiber);
  if (!body && !own.is_weights()) answer(fiber);
  if (!last_phase) return false;
  // What came meanwhile may be more urgent than weight gradients.
  if (step_.splits_backward(own)) step_.stage_of(own).polls = true;
  if (own.phase == schedule::Phase::kBackward && step_.splits_backward(own)) {
    put_weights_off(fiber);
  } else {
    step_.end(own);
    if (body) bodies_.finish(fiber);
  }
  return false;
}

/// Makes the second part of a backward work for its stage like any other; nobody waits for it.
void FiberRunner::put_weights_off(int fiber) {
  auto& own = step_.fibers[fiber];
  own.phase = schedule::Phase::kWeightGradient;
  own.operation = step_.task_of(own).last;
  own.priority = step_.priority_of(own);
  own.begins = true;
  step_.stage_of(own).ready.push(fiber, own.priority);
}

// ---- yield policy ------------------------------------------------------------------------------

/// Returns true if its stage holds `fiber` back. If not, and nothing of its phase has run, it
/// begins now.
bool FiberRunner::is_held(int fiber) {
  auto& own = step_.fibers[fiber];
  if (!own.begins) return false;
  auto& stage = step_.stage_of(own);
  const int index = step_.task_of(own).stage;
  if (const auto longest = step_.longest_hold(own); longest > 0) {
    if (own.held_since < 0) own.held_since = step_.now;
    stage.held.push_back(fiber);
    step_.events.post(step_.now + longest, Moment::kDispatch, index);
    return true;
  }
  auto& progress = step_.progress[index];
  const auto since = std::exchange(own.held_since, -1);
  if (since >= 0 && progress.hold(own.phase, own.microbatch) > 0) {
    stage.hold_rule.waited_in_vain(step_.now - since);
  }
  own.begins = false;
  progress.begins(own.phase, own.microbatch);
  return false;
}

/// Returns true if the fiber gives way to others. It does so where the runtime takes a turn: at
/// routed calls, and before the first node of a backward pass that follows an answer.
bool FiberRunner::gives_way(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  if (std::exchange(own.gave_way, false)) {
    stage.yield_policy.end(step_.now, stage.wait.result());
    return false;
  }
  const bool passes_answer_on = schedule::is_passing_on(own.priority);
  if (!own.is_forward() ? !passes_answer_on : !next_operation(own).may_yield) return false;
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
  stage.wait.paid_off = false;
  stage.wait.from = step_.now;
  stage.wait.until = step_.now + turn.patience;
  // Before its equals, which it does not give way to.
  stage.ready.push_first(fiber, own.priority);
  if (turn.patience > 0) {
    step_.events.post(stage.wait.until, Moment::kDispatch, step_.task_of(own).stage);
  }
  return true;
}

// ---- computing ---------------------------------------------------------------------------------

/// Runs operations up to the next request, end or turn. Returns false if that takes no time.
bool FiberRunner::compute(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  const bool may_yield =
      own.is_forward() && (schedule::is_passing_on(own.priority) || stage.awaiting > 0);
  const auto unpacking = std::exchange(own.unpacks, false) ? handling_ : 0;
  Nanoseconds work = 0;
  do {
    work += run_operation(own, next_operation(own));
    advance(own);
  } while (own.operation >= 0 && next_operation(own).callee < 0 &&
           !(may_yield && next_operation(own).may_yield));
  if (unpacking + work == 0) return false;
  stage.tally.busy += work;
  stage.running.fiber = fiber;
  stage.running.since = step_.now + unpacking;
  stage.running.work = work;
  if (!own.is_forward() && work > 0) {
    stage.tally.began_backward(own.microbatch, stage.running.since);
  }
  cores_.begin(step_.task_of(own).stage, unpacking + work);
  return true;
}

void FiberRunner::finish_computing(int index) {
  auto& stage = step_.stages[index];
  if (step_.options.record && stage.running.work > 0) record(stage);
  if (stage.running.work > 0) stage.tally.end = step_.now;
  stage.hold_rule.computed(step_.fibers[stage.running.fiber].phase, stage.running.work);
  cores_.end(index);
  proceed(std::exchange(stage.running.fiber, -1));
}

/// Makes the activations of an operation live, or lets go of them. Returns how long it takes.
Nanoseconds FiberRunner::run_operation(const SimulatedFiber& fiber, const Operation& operation) {
  auto& stage = step_.stage_of(fiber);
  if (!fiber.is_forward()) {
    stage.tally.memory.need(operation.gradient_bytes, step_.now);
    // A backward in two parts keeps them for the second.
    const bool keeps = !fiber.is_weights() && step_.splits_backward(fiber);
    if (!keeps) {
      stage.tally.memory.add(-operation.activation_bytes, step_.now);
      const auto index = static_cast<int>(&operation - step_.program.operations.data());
      stage.tally.memory.add(step_.gradients.made_by(index, fiber.microbatch), step_.now);
    }
  } else if (!step_.options.forward_only) {
    stage.tally.memory.add(operation.activation_bytes, step_.now);
  }
  return duration_of(fiber, operation);
}

Nanoseconds FiberRunner::work_of(const SimulatedFiber& fiber, const Operation& operation) const {
  if (fiber.is_forward()) return operation.forward;
  if (fiber.is_weights()) return operation.weights;
  return step_.splits_backward(fiber) ? operation.backward - operation.weights : operation.backward;
}

/// Returns the time of an operation with noise, which depends on seed, microbatch and operation
/// only, so that it is the same in any order.
Nanoseconds FiberRunner::duration_of(const SimulatedFiber& fiber,
                                     const Operation& operation) const {
  const auto duration = work_of(fiber, operation);
  if (step_.options.jitter == 0) return duration;
  const auto index = static_cast<std::uint64_t>(&operation - step_.program.operations.data());
  auto key = mix(step_.options.seed) + static_cast<std::uint64_t>(fiber.microbatch);
  key = mix(key) + 2 * index + (fiber.is_forward() ? 0 : 1);
  const double factor = std::max(0.0, 1 + step_.options.jitter * noise(key));
  return std::llround(factor * static_cast<double>(duration));
}

/// Records the work that a stage has done: joined with the span before if that is of the same work
/// and nothing was in between.
void FiberRunner::record(SimulatedStage& stage) const {
  auto& spans = stage.tally.spans;
  const auto& fiber = step_.fibers[stage.running.fiber];
  const int module = step_.task_of(fiber).module;
  if (spans.empty() || spans.back().end != stage.running.since || spans.back().module != module ||
      spans.back().microbatch != fiber.microbatch || spans.back().phase != fiber.phase) {
    spans.push_back({stage.running.since, 0, 0, fiber.microbatch, module, fiber.phase});
  }
  spans.back().end = step_.now;
  spans.back().cpu += stage.running.work;
}

// ---- messages ----------------------------------------------------------------------------------

/// Sends the request at which the fiber stands, and waits for the answer: for that of the last one
/// if the results of requests only go from one to the next.
void FiberRunner::ask(int fiber) {
  auto& own = step_.fibers[fiber];
  auto& stage = step_.stage_of(own);
  const int before = next_operation(own).previous;
  bool for_loss = false;
  start_task(fiber, step_.sibling(fiber, next_operation(own).callee));
  own.parked_bytes = parked_by(own, 0);
  for (int callee = next_operation(own).callee;;) {
    const auto& task = step_.program.tasks[callee];
    for_loss = own.is_forward() && !step_.options.forward_only && task.gives_loss;
    advance(own);
    callee = own.is_forward() ? task.passed_on_to : task.passed_on_by;
    if (callee < 0) break;
    // What travels from one to the next is not in the caller.
    const auto& travel =
        own.is_forward() ? step_.program.tasks[callee].there : step_.program.tasks[callee].back;
    own.parked_bytes = std::max(own.parked_bytes, parked_by(own, travel.bytes));
  }
  // Then it waits for the gradients of what it has asked for.
  if (for_loss && bodies_.leaves_backward_to_loss(fiber)) own.operation = before;
  own.awaiting = true;
  own.priority = schedule::passing_on(own.priority);
  stage.tally.memory.add(own.parked_bytes, step_.now);
  ++stage.awaiting;
  stage.polls = true;
}

/// Returns the bytes that the caller holds while the request runs at which it stands, without
/// `elsewhere`.
std::int64_t FiberRunner::parked_by(const SimulatedFiber& fiber, std::int64_t elsewhere) const {
  const auto& request = next_operation(fiber);
  if (!fiber.is_forward()) return std::max<std::int64_t>(0, request.gradient_bytes - elsewhere);
  if (step_.options.forward_only) return 0;
  return std::max<std::int64_t>(0, request.activation_bytes - elsewhere);
}

/// Starts task `callee`, in the phase of `fiber`, by sending its inputs, or the gradients of its
/// outputs, from the stage of `fiber`.
void FiberRunner::start_task(int fiber, int callee) {
  const auto& own = step_.fibers[fiber];
  auto& other = step_.fibers[callee];
  const auto& task = step_.task_of(other);
  other.phase = own.phase;
  other.operation = own.is_forward() ? task.first : task.last;
  other.begins = true;
  other.enters = own.is_forward();
  other.set_priority(step_.priority_of(other));
  send(fiber, own.is_forward() ? task.there : task.back, callee);
}

/// Sends the result of the fiber to the task that it is passed on to, or to its caller.
void FiberRunner::answer(int fiber) {
  const auto& own = step_.fibers[fiber];
  const auto& task = step_.task_of(own);
  if (begins_backward(fiber)) return;
  const int next = own.is_forward() ? task.passed_on_to : task.passed_on_by;
  if (next >= 0) return start_task(fiber, step_.sibling(fiber, next));
  send(fiber, own.is_forward() ? task.back : task.there, step_.sibling(fiber, task.caller));
}

/// Begins the backward of a fiber that has the loss and was asked for its gradients already.
/// Returns false if the fiber is no such one.
bool FiberRunner::begins_backward(int fiber) {
  auto& own = step_.fibers[fiber];
  const auto& task = step_.task_of(own);
  if (!own.is_forward() || !task.gives_loss) return false;
  if (step_.fibers[step_.sibling(fiber, task.caller)].is_forward()) return false;
  own.phase = schedule::Phase::kBackward;
  own.operation = task.last;
  own.begins = true;
  own.set_priority(step_.priority_of(own));
  step_.stage_of(own).ready.push(fiber, own.priority);
  return true;
}

/// Sends a message, which takes the sender's thread for a while and then travels. Within a stage it
/// does neither.
void FiberRunner::send(int fiber, const Task::Travel& travel, int to) {
  auto& own = step_.fibers[fiber];
  auto& receiver = step_.fibers[to];
  const int from = step_.task_of(own).stage;
  receiver.arriving_bytes = step_.options.forward_only ? 0 : travel.bytes;
  if (step_.task_of(receiver).stage == from) {
    step_.events.post(step_.now, Moment::kArrival, from, to);
    return;
  }
  // Arguments count in the caller meanwhile, and a trace does not tell whether who made a result
  // keeps it anyway.
  if (!own.is_forward()) receiver.holder = from;
  const auto handling = std::exchange(own.unpacks, false) ? 2 * handling_ : handling_;
  const auto free_at = step_.now + handling;
  receiver.unpacks = true;
  ++step_.stages[from].tally.messages;
  travel_to(from, to, travel, free_at);
  if (handling == 0) return;
  step_.stages[from].free_at = free_at;
  step_.events.post(free_at, Moment::kDispatch, from);
}

/// Lets a message travel from stage `from`, which it leaves at `time`.
void FiberRunner::travel_to(int from, int to, const Task::Travel& travel, Nanoseconds time) {
  const int stage = step_.task_of(step_.fibers[to]).stage;
  if (step_.machine.on_network(from, stage)) {
    network_.send(from, to, travel.bytes, time);
    return;
  }
  const auto& machine = step_.machine;
  auto duration = travel.duration;
  if (!machine.pairs.empty()) {
    duration = std::llround(machine.pair(from, stage).travel(travel.bytes) * base::kSecond);
  } else if (!machine.is_near(from, stage)) {
    duration = std::llround(machine.across_sockets.travel(travel.bytes) * base::kSecond);
  } else if (!machine.direct_links.empty()) {
    const Machine::Link link{machine.latency, machine.near_bandwidth(from, stage)};
    duration = std::llround(link.travel(travel.bytes) * base::kSecond);
  }
  step_.events.post(time + duration, Moment::kArrival, stage, to);
}

}  // namespace smp::simulate
