// partition/simulator.cpp: events on a heap; what a stage's thread does next follows
// server/module_server and base/fiber. No allocation once the heaps have grown.
#include "partition/simulator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/turns.h"
#include "partition/event_queue.h"
#include "partition/noise.h"
#include "partition/shared_cores.h"
#include "partition/simulated_stage.h"
#include "partition/step_program.h"

namespace smp::partition {
namespace {

using base::Nanoseconds;
using schedule::Phase;

struct CrowdedHost {
  SharedCores cores;
  std::uint64_t expected = 0;  // event at which the next stage is done; earlier ones are void
};

class Step {
 public:
  Step(const StepProgram& program, const Machine& machine, const SimulationOptions& options)
      : program_(program),
        machine_(machine),
        options_(options),
        schedule_(*options.schedule),
        handling_(std::llround(machine.handling * base::kSecond)),
        fibers_(program.tasks.size() * static_cast<std::size_t>(options.microbatches)),
        stages_(static_cast<std::size_t>(machine.stages)) {
    for (const auto& host : machine.crowded) {
      for (const int stage : host.stages) stages_[stage].host = static_cast<int>(hosts_.size());
      hosts_.push_back({SharedCores(host.cores)});
    }
    progress_.microbatches = elsewhere_.microbatches = options.microbatches;
  }

  SimulatedStep run();

 private:
  // Events.
  bool more_happens_now(Moment before) const;
  bool is_void(const Event& event) const;
  void handle(const Event& event);

  // A stage's thread.
  void dispatch(int stage_index, bool at_last);
  void take_in(SimulatedStage& stage, bool all);
  int take_ready(SimulatedStage& stage);

  // A fiber on its thread.
  void proceed(int fiber);
  bool gives_way(int fiber);
  bool compute(int fiber);
  void ask(int fiber);
  void answer(int fiber);
  void send(int fiber, const Task::Travel& travel, int to);
  Nanoseconds account(const SimulatedFiber& fiber, const Operation& operation);
  void begin_work(int stage_index, Nanoseconds work);
  void end_work(int stage_index);
  void expect_end(CrowdedHost& host);
  void record(SimulatedStage& stage);

  // Bodies, on stage 0.
  void start_microbatches();
  bool goes_on_to_backward(int fiber);
  void finish_body();
  void open_gate();
  std::int64_t priority_of(const SimulatedFiber& fiber) const;

  SimulatedStep result();

  const Task& task_of(const SimulatedFiber& fiber) const noexcept {
    return program_.tasks[fiber.task];
  }
  SimulatedStage& stage_of(const SimulatedFiber& fiber) noexcept {
    return stages_[task_of(fiber).stage];
  }

  const StepProgram& program_;
  const Machine& machine_;
  const SimulationOptions& options_;
  const schedule::Schedule& schedule_;
  const Nanoseconds handling_;
  std::vector<SimulatedFiber> fibers_;  // by microbatch, by task
  std::vector<SimulatedStage> stages_;
  std::vector<CrowdedHost> hosts_;
  EventQueue events_;
  Nanoseconds now_ = 0;
  schedule::Progress progress_;   // as stage 0 sees it
  schedule::Progress elsewhere_;  // as the others do
  std::vector<int> gate_;
};

SimulatedStep Step::run() {
  for (std::size_t i = 0; i < fibers_.size(); ++i) {
    fibers_[i].task = static_cast<int>(i % program_.tasks.size());
    fibers_[i].microbatch = static_cast<int>(i / program_.tasks.size());
  }
  start_microbatches();
  dispatch(0, false);
  while (!events_.empty()) handle(events_.take());
  SMP_ASSERT(progress_.finished == options_.microbatches, "schedule ", schedule_.name(), " ends ",
             progress_.finished, " of ", options_.microbatches, " microbatches");
  return result();
}

// ---- events -----------------------------------------------------------------------------------

bool Step::more_happens_now(Moment before) const {
  return !events_.empty() && events_.next().time == now_ && events_.next().moment < before;
}

/// The end of a computation that other stages on its cores have put off or brought forward.
bool Step::is_void(const Event& event) const {
  const int host = stages_[event.stage].host;
  return host >= 0 && event.moment == Moment::kArrival && event.fiber < 0 &&
         event.number != hosts_[host].expected;
}

void Step::handle(const Event& event) {
  if (is_void(event)) return;
  now_ = event.time;
  auto& stage = stages_[event.stage];
  if (event.moment != Moment::kArrival) {
    return dispatch(event.stage, event.moment == Moment::kCompute);
  }
  if (event.fiber < 0) {
    end_work(event.stage);
    proceed(std::exchange(stage.running, -1));
  } else {
    int& link =
        stage.last_in_inbox < 0 ? stage.first_in_inbox : fibers_[stage.last_in_inbox].next_in_inbox;
    link = stage.last_in_inbox = event.fiber;
  }
  if (stage.running >= 0 || stage.free_at > now_) return;
  if (more_happens_now(Moment::kDispatch)) {
    events_.post(now_, Moment::kDispatch, event.stage);
  } else {
    dispatch(event.stage, false);
  }
}

// ---- a stage's thread -------------------------------------------------------------------------

/// Runs fibers until one computes or none can. `at_last`: nobody else acts at this moment.
void Step::dispatch(int index, bool at_last) {
  auto& stage = stages_[index];
  while (stage.running < 0 && stage.free_at <= now_) {
    const bool all = at_last || now_ <= stage.hold_until;
    if (std::exchange(stage.polls, false) || all || stage.ready.empty()) take_in(stage, all);
    if (stage.ready.empty()) return;
    const auto& next = fibers_[stage.ready.first()];
    if (next.had_turn && now_ < stage.hold_until) return;
    const bool computes = next.operation >= 0 && program_.operations[next.operation].callee < 0;
    if (computes && more_happens_now(Moment::kCompute)) {
      events_.post(now_, Moment::kCompute, index);
      return;
    }
    proceed(take_ready(stage));
  }
}

/// What a poll of the transport does.
void Step::take_in(SimulatedStage& stage, bool all) {
  while (stage.first_in_inbox >= 0) {
    const int fiber = stage.first_in_inbox;
    stage.first_in_inbox = std::exchange(fibers_[fiber].next_in_inbox, -1);
    if (stage.first_in_inbox < 0) stage.last_in_inbox = -1;
    auto& own = fibers_[fiber];
    const auto arrived = std::exchange(own.arriving_bytes, 0);
    stage.hold(arrived);
    own.waiting_bytes += arrived;
    stage.ready.push(fiber, own);
    if (!all) return;
  }
}

int Step::take_ready(SimulatedStage& stage) {
  const int fiber = stage.ready.pop();
  auto& own = fibers_[fiber];
  if (std::exchange(own.awaiting, false)) --stage.awaiting;
  if (std::exchange(own.newborn, false)) own.passing_on = true;  // as ModuleServer::run_body
  return fiber;
}

// ---- a fiber on its thread --------------------------------------------------------------------

void Step::proceed(int fiber) {
  auto& own = fibers_[fiber];
  stage_of(own).hold(-std::exchange(own.waiting_bytes, 0));
  for (;;) {
    if (own.operation < 0) {
      if (own.task != 0) return answer(fiber);
      if (!goes_on_to_backward(fiber)) return;
    } else if (program_.operations[own.operation].callee >= 0) {
      return ask(fiber);
    } else if (gives_way(fiber) || compute(fiber)) {
      return;
    }
  }
}

/// FiberScheduler::take_turn, where the runtime calls it: at routed calls, and before the first
/// node of a backward pass that follows an answer.
bool Step::gives_way(int fiber) {
  auto& own = fibers_[fiber];
  auto& stage = stage_of(own);
  if (std::exchange(own.had_turn, false)) {
    stage.last_turn = now_;
    return false;
  }
  if (!own.backward && !program_.operations[own.operation].turn) return false;
  const bool long_work =
      !own.backward && stage.awaiting > 0 && now_ - stage.last_turn > base::kLongWork;
  if (!std::exchange(own.passing_on, false) && !long_work) return false;
  const bool waits = machine_.patient && stage.awaiting > 0;
  const auto patience = waits ? base::patience(now_ - stage.last_turn) : 0;
  take_in(stage, false);
  if (patience == 0 && !stage.ready.has_before(own) && !more_happens_now(Moment::kCompute)) {
    stage.last_turn = now_;
    return false;
  }
  own.had_turn = true;
  stage.hold_until = now_ + patience;
  stage.ready.push_first(fiber, own);  // before its equals, which it does not give way to
  if (patience > 0) events_.post(stage.hold_until, Moment::kDispatch, task_of(own).stage);
  return true;
}

/// Runs operations up to the next request, end or turn. False if that takes no time.
bool Step::compute(int fiber) {
  auto& own = fibers_[fiber];
  auto& stage = stage_of(own);
  const bool turns = !own.backward && (own.passing_on || stage.awaiting > 0);
  const auto unpacking = std::exchange(own.unpacks, false) ? handling_ : 0;
  Nanoseconds work = 0;
  do {
    const auto& operation = program_.operations[own.operation];
    work += account(own, operation);
    own.operation = own.backward ? operation.previous : operation.next;
  } while (own.operation >= 0 && program_.operations[own.operation].callee < 0 &&
           !(turns && program_.operations[own.operation].turn));
  if (unpacking + work == 0) return false;
  stage.busy += work;
  stage.running = fiber;
  stage.since = now_ + unpacking;
  stage.work = work;
  begin_work(task_of(own).stage, unpacking + work);
  return true;
}

void Step::begin_work(int index, Nanoseconds work) {
  const int host = stages_[index].host;
  if (host < 0) {
    events_.post(now_ + work, Moment::kArrival, index);
  } else {
    hosts_[host].cores.begin(index, work, now_);
    expect_end(hosts_[host]);
  }
}

void Step::end_work(int index) {
  auto& stage = stages_[index];
  if (options_.record && stage.work > 0) record(stage);
  if (stage.host < 0) return;
  auto& host = hosts_[stage.host];
  host.cores.end(now_);
  if (!host.cores.idle()) expect_end(host);
}

void Step::expect_end(CrowdedHost& host) {
  host.expected = events_.post(host.cores.next_end(), Moment::kArrival, host.cores.next_stage());
}

/// Holds or lets go of activations. Returns how long the operation takes.
Nanoseconds Step::account(const SimulatedFiber& fiber, const Operation& operation) {
  auto& stage = stage_of(fiber);
  if (fiber.backward) {
    stage.need(operation.gradient_bytes);
    stage.hold(-operation.activation_bytes);
  } else if (!options_.forward_only) {
    stage.hold(operation.activation_bytes);
  }
  const auto duration = fiber.backward ? operation.backward : operation.forward;
  if (options_.jitter == 0) return duration;
  const auto index = static_cast<std::uint64_t>(&operation - program_.operations.data());
  auto key = mix(options_.seed) + static_cast<std::uint64_t>(fiber.microbatch);
  key = mix(key) + 2 * index + (fiber.backward ? 1 : 0);
  const double factor = std::max(0.0, 1 + options_.jitter * noise(key));
  return std::llround(factor * static_cast<double>(duration));
}

void Step::record(SimulatedStage& stage) {
  auto& spans = stage.spans;
  const auto& fiber = fibers_[stage.running];
  const auto phase = fiber.backward ? base::Phase::kBackward : base::Phase::kForward;
  const int module = task_of(fiber).module;
  if (spans.empty() || spans.back().end != stage.since || spans.back().module != module ||
      spans.back().microbatch != fiber.microbatch || spans.back().phase != phase) {
    spans.push_back({stage.since, 0, 0, fiber.microbatch, module, phase});
  }
  spans.back().end = now_;
  spans.back().cpu += stage.work;
}

/// Sends the request at which the fiber stands, and waits for the answer.
void Step::ask(int fiber) {
  auto& own = fibers_[fiber];
  const auto& operation = program_.operations[own.operation];
  own.operation = own.backward ? operation.previous : operation.next;
  const auto& task = program_.tasks[operation.callee];
  const int callee = fiber - own.task + operation.callee;
  auto& other = fibers_[callee];
  other.operation = own.backward ? task.last : task.first;
  other.backward = own.backward;
  other.priority = priority_of(other);
  send(fiber, own.backward ? task.back : task.there, callee);
  own.awaiting = own.passing_on = true;
  auto& stage = stage_of(own);
  own.waiting_bytes = own.backward            ? operation.gradient_bytes
                      : options_.forward_only ? 0
                                              : operation.activation_bytes;
  stage.hold(own.waiting_bytes);
  ++stage.awaiting;
  stage.polls = true;
}

/// Sends what the fiber was asked for, and ends.
void Step::answer(int fiber) {
  const auto& own = fibers_[fiber];
  const auto& task = task_of(own);
  send(fiber, own.backward ? task.there : task.back, fiber - own.task + task.caller);
}

void Step::send(int fiber, const Task::Travel& travel, int to) {
  auto& own = fibers_[fiber];
  const int from = task_of(own).stage;
  const auto handling = std::exchange(own.unpacks, false) ? 2 * handling_ : handling_;
  fibers_[to].unpacks = true;
  fibers_[to].arriving_bytes = options_.forward_only ? 0 : travel.bytes;
  ++stages_[from].messages;
  events_.post(now_ + handling + travel.duration, Moment::kArrival, task_of(fibers_[to]).stage, to);
  if (handling == 0) return;
  stages_[from].free_at = now_ + handling;
  events_.post(now_ + handling, Moment::kDispatch, from);
}

// ---- bodies, on stage 0 -----------------------------------------------------------------------

std::int64_t Step::priority_of(const SimulatedFiber& fiber) const {
  const auto phase = fiber.backward ? Phase::kBackward : Phase::kForward;
  const auto& progress = task_of(fiber).stage == 0 ? progress_ : elsewhere_;
  return schedule_.priority(phase, fiber.microbatch, progress);
}

void Step::start_microbatches() {
  while (progress_.started < progress_.microbatches && schedule_.may_start(progress_)) {
    const int body = progress_.started++ * static_cast<int>(program_.tasks.size());
    auto& own = fibers_[body];
    own.operation = program_.tasks[0].first;
    own.priority = priority_of(own);
    own.newborn = true;
    stages_[0].ready.push(body, own);
  }
}

/// A body is at the end of its forward or of its backward.
bool Step::goes_on_to_backward(int fiber) {
  auto& own = fibers_[fiber];
  stages_[0].polls = true;
  if (own.backward || options_.forward_only) {
    finish_body();
    return false;
  }
  if (!std::exchange(own.at_gate, true)) {
    ++progress_.forward_done;
    open_gate();
    start_microbatches();
  }
  if (!schedule_.may_begin_backward(progress_)) {
    gate_.push_back(fiber);
    return false;
  }
  own.backward = true;
  own.operation = program_.tasks[0].last;
  own.priority = priority_of(own);
  return true;
}

void Step::finish_body() {
  ++progress_.finished;
  if (options_.forward_only) {
    ++progress_.forward_done;
    open_gate();
  }
  start_microbatches();
}

void Step::open_gate() {
  if (gate_.empty() || !schedule_.may_begin_backward(progress_)) return;
  for (const int fiber : std::exchange(gate_, {})) stages_[0].ready.push(fiber, fibers_[fiber]);
}

SimulatedStep Step::result() {
  SimulatedStep step;
  step.seconds = static_cast<double>(now_) / base::kSecond;
  double busy = 0;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    auto& stage = stages_[i];
    step.busy.push_back(static_cast<double>(stage.busy) / base::kSecond);
    busy += step.busy.back();
    step.peak_activations.push_back(stage.peak);
    step.settled_activations.push_back(stage.settled_peak);
    step.messages.push_back(stage.messages);
    if (!options_.record) continue;
    const bool crowded = stage.host >= 0;
    step.timeline.push_back({static_cast<int>(i), 0, 0, now_, crowded, std::move(stage.spans)});
  }
  if (now_ > 0) step.bubble = 1 - busy / (machine_.stages * step.seconds);
  return step;
}

}  // namespace

SimulatedStep simulate(const ModuleTree& tree, const Trace& trace, const std::vector<int>& stages,
                       const Machine& machine, const SimulationOptions& options) {
  SMP_ASSERT(options.schedule != nullptr && options.microbatches >= 1, options.microbatches,
             " microbatches");
  const auto program = compile(tree, trace, stages, machine);
  return Step(program, machine, options).run();
}

std::vector<std::int64_t> most_activations(const ModuleTree& tree, const Trace& trace,
                                           const std::vector<int>& stages, const Machine& machine,
                                           const SimulationOptions& options, int in_flight) {
  SimulationOptions one = options;
  one.microbatches = 1;
  const auto step = simulate(tree, trace, stages, machine, one);
  auto most = step.peak_activations;
  for (std::size_t i = 0; i < most.size(); ++i) {
    most[i] += (in_flight - 1) * step.settled_activations[i];
  }
  return most;
}

}  // namespace smp::partition
