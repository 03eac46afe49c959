// simulate/step_program.cpp: walks the calls of a trace and sorts their compute intervals into
// tasks.
#include "simulate/step_program.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "schedule/yield_policy.h"
#include "simulate/recomputation.h"

namespace smp::simulate {
namespace {

constexpr double kOnlyPassesOnSeconds = static_cast<double>(kOnlyPassesOn) / base::kSecond;
constexpr double kLongWork = static_cast<double>(schedule::kLongWork) / base::kSecond;

base::Nanoseconds nanoseconds(double seconds) {
  return static_cast<base::Nanoseconds>(std::llround(seconds * base::kSecond));
}

bool keeps_order(const Trace& trace) {
  return std::any_of(trace.state.begin(), trace.state.end(),
                     [](const StateChange& change) { return change.kind == StateKind::kOrdered; });
}

class Compiler {
 public:
  /// Compiles one microbatch.
  Compiler(const Trace& trace, const std::vector<int>& stages, const Machine& machine,
           bool passes_on)
      : trace_(trace), stages_(stages), machine_(machine), passes_on_(passes_on) {}

  StepProgram run() {
    program_.tasks.emplace_back();
    places_.resize(trace_.num_intervals());
    find_profiles();
    note_keepers();
    open_.push_back({-1, 0});
    const int count = static_cast<int>(trace_.calls.size());
    for (int call = 0; call < count; ++call) {
      leave_until(trace_.calls[call].caller);
      enter(call);
    }
    leave_until(-1);
    compute(0, {-1, false}, 0);
    note_loss();
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

  /// The place in the program where a compute interval runs.
  struct IntervalPlace {
    int task = -1;
    int operation = -1;  // -1: none, since it does nothing
  };

  /// The seconds of an operation, on its task's stage.
  struct OperationTimes {
    double forward = 0, backward = 0, weights = 0;
    double by_ratio = 0;  // the part of `forward` whose backward only the ratio tells
    double traced = 0;    // where it was traced, whatever stage it is on

    void add(const IntervalId& id, const Trace& trace, const DeviceProfile* profile, double speed) {
      const ComputeInterval& own = trace.interval(id);
      traced += own.seconds;
      if (profile != nullptr) {
        add(profile->times[key(id)], speed);
      } else if (own.backward_seconds >= 0) {
        add(trace.times_of(own), speed);
      } else {
        forward += own.seconds / speed;
        by_ratio += own.seconds / speed;
      }
    }
    void add(const IntervalTimes& times, double speed) {
      forward += times.forward / speed;
      backward += times.backward / speed;
      weights += times.weights / speed;
    }
  };

  void leave_until(int caller) {
    while (open_.back().call != caller) {
      SMP_ASSERT(open_.size() > 1, "the trace's caller ", caller, " is not running");
      const int call = open_.back().call;
      compute(open_.back().task, {call, false}, waiting_while(call));
      open_.pop_back();
    }
  }

  /// Returns the bytes of gradients that wait on the stage of `call`'s task, in its callers, while
  /// `call` runs.
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

  /// Returns the task in which call `index` runs: that of its caller, the caller's last request, or
  /// a new one.
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
    const int before = request_passed_on(caller);
    const int task = static_cast<int>(program_.tasks.size());
    program_.tasks.push_back(
        {stage, call.module, caller, -1, -1, travel(call.input_bytes), travel(call.output_bytes)});
    auto& operation = append(caller);
    operation.callee = task;
    operation.activation_bytes = call.caller_live_bytes;
    operation.gradient_bytes = call.caller_gradient_bytes + waiting_while(call.caller);
    if (before >= 0) pass_on(before, program_.tasks[caller].last);
    return task;
  }

  /// Returns the last request of `task`, if the task has only passed its result on since; -1: there
  /// is none.
  int request_passed_on(int task) const {
    if (!passes_on_) return -1;
    int operation = program_.tasks[task].last;
    while (operation >= 0 && program_.operations[operation].callee < 0) {
      if (!is_negligible(operation)) return -1;
      operation = program_.operations[operation].previous;
    }
    return operation;
  }

  /// Finds the request of the body that gives the loss, perhaps from a call of its own.
  void note_loss() {
    const int request = request_passed_on(0);
    if (request < 0 || trace_.loss_call < 0) return;
    int task = tasks_of_calls_.at(trace_.loss_call);
    while (program_.tasks[task].caller > 0) task = program_.tasks[task].caller;
    program_.tasks[task].gives_loss = task == program_.operations[request].callee;
  }

  bool is_negligible(int operation) const {
    return seconds_[operation].traced < kOnlyPassesOnSeconds && !keeps_shared_[operation] &&
           program_.operations[operation].activation_bytes == 0;
  }

  /// Lets the result of request `from` go to request `to` of the same task. Computations between
  /// them are moved before the first request of the chain: no result there waits for them.
  void pass_on(int from, int to) {
    auto& operations = program_.operations;
    int first = from;
    while (program_.tasks[operations[first].callee].passed_on_by >= 0) {
      first = operations[first].previous;
    }
    while (operations[from].next != to) move_before(operations[from].next, first);
    program_.tasks[operations[from].callee].passed_on_to = operations[to].callee;
    program_.tasks[operations[to].callee].passed_on_by = operations[from].callee;
  }

  /// Moves `operation`, which is neither the first nor the last of its task, before `other`.
  void move_before(int operation, int other) {
    auto& operations = program_.operations;
    auto& own = operations[operation];
    operations[own.previous].next = own.next;
    operations[own.next].previous = own.previous;
    own.previous = operations[other].previous;
    own.next = other;
    if (own.previous < 0) {
      program_.tasks[task_of_operation_[operation]].first = operation;
    } else {
      operations[own.previous].next = operation;
    }
    operations[other].previous = operation;
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
    program_.modules.emplace_back();
    seconds_.emplace_back();
    keeps_shared_.push_back(false);
    task_of_operation_.push_back(task);
    return operation;
  }

  bool ends_with_computation(int task) const {
    const int last = program_.tasks[task].last;
    return last >= 0 && program_.operations[last].callee < 0;
  }

  /// Begins a routed call: after a long interval the runtime looks for answers here.
  void begin_call(int task) {
    const int last = program_.tasks[task].last;
    const bool joins = ends_with_computation(task) && seconds_[last].forward <= kLongWork;
    (joins ? program_.operations[last] : append(task)).may_yield = true;
  }

  static std::size_t key(const IntervalId& id) { return Trace::index_of(id); }

  /// @param waiting  bytes of gradients that are live meanwhile
  void compute(int task, const IntervalId& id, std::int64_t waiting) {
    const ComputeInterval& own = trace_.interval(id);
    auto& place = places_[key(id)];
    place.task = task;
    const bool works = own.seconds > 0 || own.backward_seconds > 0;
    if (!works && own.activation_bytes == 0 && own.gradient_bytes == 0) return;
    if (!ends_with_computation(task)) append(task);
    const auto& owner = program_.tasks[task];
    auto& operation = program_.operations[owner.last];
    seconds_[owner.last].add(id, trace_, profiles_[owner.stage], machine_.speed(owner.stage));
    operation.activation_bytes += own.activation_bytes;
    operation.gradient_bytes = std::max(operation.gradient_bytes, own.gradient_bytes + waiting);
    place.operation = owner.last;
    note_module(owner.last, id);
    if (keeper_[key(id)]) keeps_shared_[owner.last] = true;
  }

  void note_module(int operation, const IntervalId& id) {
    const int call = id.before ? trace_.calls[id.call].caller : id.call;
    const int module = call < 0 ? 0 : trace_.calls[call].module;
    auto& modules = program_.modules[operation];
    if (modules.empty() || modules.back() != module) modules.push_back(module);
  }

  void find_profiles() {
    profiles_.resize(static_cast<std::size_t>(machine_.stages));
    for (std::size_t stage = 0; stage < machine_.devices.size(); ++stage) {
      profiles_.at(stage) = trace_.find_profile(machine_.devices[stage]);
    }
  }

  void note_keepers() {
    keeper_.resize(places_.size());
    for (const auto& tensor : trace_.shared) {
      for (const IntervalId& keeper : tensor.keepers) keeper_[key(keeper)] = true;
    }
  }

  /// Gives every task that keeps a shared tensor its own copy.
  void copy_shared_tensors() {
    for (const auto& [bytes, keepers] : trace_.shared) {
      std::vector<int> tasks;
      for (const IntervalId& keeper : keepers) {
        const auto [task, operation] = places_[key(keeper)];
        const bool first_of_batch = operation < 0 && tasks.empty() && task >= 0;
        if (operation < 0 && !first_of_batch) continue;
        if (std::find(tasks.begin(), tasks.end(), task) != tasks.end()) continue;
        if (!tasks.empty()) program_.operations[operation].activation_bytes += bytes;
        tasks.push_back(task);
      }
    }
  }

  void price_operations() {
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      const double by_ratio = seconds_[i].by_ratio * trace_.backward_ratio;
      auto& operation = program_.operations[i];
      operation.forward = nanoseconds(seconds_[i].forward);
      operation.backward = nanoseconds(seconds_[i].backward + by_ratio);
      operation.weights = nanoseconds(seconds_[i].weights + by_ratio * trace_.weight_share);
    }
  }

  const Trace& trace_;
  const std::vector<int>& stages_;
  const Machine& machine_;
  StepProgram program_;
  const bool passes_on_;
  std::vector<const DeviceProfile*>
      profiles_;  // of every stage's device; nullptr: the trace itself
  std::vector<OperationTimes> seconds_;
  std::vector<bool> keeps_shared_;      // operations that keep a tensor which others keep too
  std::vector<int> task_of_operation_;  //
  std::vector<bool> keeper_;            // intervals of which that is so, by key
  std::vector<IntervalPlace> places_;   // by key
  std::vector<OpenCall> open_;
  std::vector<int> tasks_of_calls_;
};

void require_stages(const Trace& trace, const std::vector<int>& stages) {
  for (const TracedCall& call : trace.calls) {
    SMP_ASSERT(call.module >= 0 && call.module < static_cast<int>(stages.size()), "module ",
               call.module, " was called; there are stages of ", stages.size(), " modules");
  }
}

void move_on(int& index, std::size_t by) {
  if (index >= 0) index += static_cast<int>(by);
}

/// Adds the tasks of one more microbatch.
void append(StepProgram& all, StepProgram&& one) {
  const auto operations = all.operations.size(), tasks = all.tasks.size();
  for (auto& operation : one.operations) {
    move_on(operation.callee, tasks);
    move_on(operation.previous, operations);
    move_on(operation.next, operations);
    all.operations.push_back(operation);
  }
  std::move(one.modules.begin(), one.modules.end(), std::back_inserter(all.modules));
  all.bodies.push_back(static_cast<int>(tasks));
  for (auto& task : one.tasks) {
    for (int* index : {&task.first, &task.last}) move_on(*index, operations);
    for (int* index : {&task.caller, &task.passed_on_to, &task.passed_on_by}) {
      move_on(*index, tasks);
    }
    all.tasks.push_back(task);
  }
}

}  // namespace

StepProgram compile(const Trace& trace, const std::vector<int>& stages, const Machine& machine) {
  const bool passes_on = machine.promised_outputs && !keeps_order(trace);
  StepProgram program;
  const auto add = [&](const Trace& traced) {
    append(program, Compiler(traced, stages, machine, passes_on).run());
  };
  for (std::size_t i = 0; i < trace.num_traced(); ++i) {
    const Trace& traced = trace.of_microbatch(i);
    require_stages(traced, stages);
    if (trace.recomputed.empty()) {
      add(traced);
    } else {
      add(with_recomputation(traced, trace, stages));
    }
  }
  return program;
}

}  // namespace smp::simulate
