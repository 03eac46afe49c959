// simulate/step_program.cpp: walks the calls of a trace and sorts their compute intervals into
// tasks.
#include "simulate/step_program.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "schedule/yield_policy.h"

namespace smp::simulate {
namespace {

constexpr double kLongWork = static_cast<double>(schedule::kLongWork) / base::kSecond;

base::Nanoseconds nanoseconds(double seconds) {
  return static_cast<base::Nanoseconds>(std::llround(seconds * base::kSecond));
}

class Compiler {
 public:
  Compiler(const Trace& trace, const std::vector<int>& stages, const Machine& machine)
      : trace_(trace), stages_(stages), machine_(machine) {}

  StepProgram run() {
    program_.tasks.emplace_back();
    places_.resize(2 * (trace_.calls.size() + 1));
    open_.push_back({-1, 0});
    const int count = static_cast<int>(trace_.calls.size());
    for (int call = 0; call < count; ++call) {
      leave_until(trace_.calls[call].caller);
      enter(call);
    }
    leave_until(-1);
    compute(0, {-1, false}, 0);
    copy_shared_tensors();
    price_operations();
    return std::move(program_);
  }

 private:
  /// A call that has begun and not ended.
  struct OpenCall {
    int call;
    int task;          // that runs it
    int request = -1;  // of a sequential: its last request, which the next neighbour may join
  };

  /// Where a compute interval runs.
  struct IntervalPlace {
    int task = -1;
    int operation = -1;  // -1: none, since it does nothing
  };

  void leave_until(int caller) {
    while (open_.back().call != caller) {
      SMP_ASSERT(open_.size() > 1, "the trace's caller ", caller, " is not running");
      const int call = open_.back().call;
      compute(open_.back().task, {call, false}, waiting_while(call));
      open_.pop_back();
    }
  }

  /// Gradients that wait on the stage of `call`'s task, in its callers, while `call` runs.
  std::int64_t waiting_while(int call) const {
    std::int64_t bytes = 0;
    for (int own = call; own >= 0; own = trace_.calls[own].caller) {
      if (task_of_caller(own) != tasks_of_calls_[own]) break;
      bytes += trace_.calls[own].caller_gradient_bytes;
    }
    return bytes;
  }

  int task_of_caller(int call) const {
    const int caller = trace_.calls[call].caller;
    return caller < 0 ? 0 : tasks_of_calls_[caller];
  }

  void enter(int call) {
    const int task = task_of(call, open_.back());
    begin_call(task);
    open_.push_back({call, task});
    tasks_of_calls_.push_back(task);
  }

  /// Where call `index` runs: with its caller, in the caller's last request, or in a new one.
  int task_of(int index, OpenCall& caller) {
    const TracedCall& call = trace_.calls[index];
    const int stage = stages_[call.module];
    if (caller.request >= 0 && program_.tasks[caller.request].stage == stage) {
      compute(caller.request, {index, true}, 0);
      program_.tasks[caller.request].back = travel(call.output_bytes);
      return caller.request;
    }
    compute(caller.task, {index, true}, waiting_while(call.caller));
    caller.request = -1;
    if (program_.tasks[caller.task].stage == stage) return caller.task;
    const int task = request(call, caller.task, stage);
    if (caller.call >= 0 && trace_.calls[caller.call].sequential) caller.request = task;
    return task;
  }

  int request(const TracedCall& call, int caller, int stage) {
    const int task = static_cast<int>(program_.tasks.size());
    program_.tasks.push_back(
        {stage, call.module, caller, -1, -1, travel(call.input_bytes), travel(call.output_bytes)});
    auto& operation = append(caller);
    operation.callee = task;
    operation.activation_bytes = call.caller_live_bytes;
    operation.gradient_bytes = call.caller_gradient_bytes + waiting_while(call.caller);
    return task;
  }

  Task::Travel travel(std::int64_t bytes) const {
    return {nanoseconds(machine_.travel(bytes)), bytes};
  }

  Operation& append(int task) {
    const int index = static_cast<int>(program_.operations.size());
    auto& owner = program_.tasks[task];
    auto& operation = program_.operations.emplace_back();
    operation.previous = owner.last;
    (owner.last < 0 ? owner.first : program_.operations[owner.last].next) = index;
    owner.last = index;
    seconds_.push_back(0);
    return operation;
  }

  bool ends_with_computation(int task) const {
    const int last = program_.tasks[task].last;
    return last >= 0 && program_.operations[last].callee < 0;
  }

  /// A routed call begins: after a long interval the runtime looks for answers here.
  void begin_call(int task) {
    const int last = program_.tasks[task].last;
    const bool joins = ends_with_computation(task) && seconds_[last] <= kLongWork;
    (joins ? program_.operations[last] : append(task)).may_yield = true;
  }

  static std::size_t key(const IntervalId& id) {
    return 2 * static_cast<std::size_t>(id.call + 1) + (id.before ? 1 : 0);
  }

  const ComputeInterval& interval(const IntervalId& id) const {
    if (id.call < 0) return trace_.body_after;
    const TracedCall& call = trace_.calls[id.call];
    return id.before ? call.before : call.after;
  }

  /// @param waiting  gradients that are there meanwhile
  void compute(int task, const IntervalId& id, std::int64_t waiting) {
    const ComputeInterval& own = interval(id);
    auto& place = places_[key(id)];
    place.task = task;
    if (own.seconds == 0 && own.activation_bytes == 0 && own.gradient_bytes == 0) return;
    if (!ends_with_computation(task)) append(task);
    const auto& owner = program_.tasks[task];
    auto& operation = program_.operations[owner.last];
    seconds_[owner.last] += own.seconds / machine_.speed(owner.stage);
    operation.activation_bytes += own.activation_bytes;
    operation.gradient_bytes = std::max(operation.gradient_bytes, own.gradient_bytes + waiting);
    place.operation = owner.last;
  }

  /// Every task that keeps one has its own copy.
  void copy_shared_tensors() {
    for (const auto& [bytes, keepers] : trace_.shared) {
      std::vector<int> tasks;
      for (const IntervalId& keeper : keepers) {
        const auto [task, operation] = places_[key(keeper)];
        if (operation < 0 || std::find(tasks.begin(), tasks.end(), task) != tasks.end()) continue;
        if (!tasks.empty()) program_.operations[operation].activation_bytes += bytes;
        tasks.push_back(task);
      }
    }
  }

  void price_operations() {
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      program_.operations[i].forward = nanoseconds(seconds_[i]);
      program_.operations[i].backward = nanoseconds(seconds_[i] * trace_.backward_ratio);
    }
  }

  const Trace& trace_;
  const std::vector<int>& stages_;
  const Machine& machine_;
  StepProgram program_;
  std::vector<double> seconds_;        // of every operation, at the task's speed
  std::vector<IntervalPlace> places_;  // by key
  std::vector<OpenCall> open_;
  std::vector<int> tasks_of_calls_;
};

}  // namespace

StepProgram compile(const Trace& trace, const std::vector<int>& stages, const Machine& machine) {
  for (const TracedCall& call : trace.calls) {
    SMP_ASSERT(call.module >= 0 && call.module < static_cast<int>(stages.size()), "module ",
               call.module, " was called; there are stages of ", stages.size(), " modules");
  }
  return Compiler(trace, stages, machine).run();
}

}  // namespace smp::simulate
