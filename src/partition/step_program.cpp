// partition/step_program.cpp: walks the calls of a trace and sorts their stretches into tasks.
#include "partition/step_program.h"

#include <cmath>

#include "base/check.h"
#include "base/turns.h"

namespace smp::partition {
namespace {

constexpr double kLongWork = static_cast<double>(base::kLongWork) / base::kSecond;

base::Nanoseconds nanoseconds(double seconds) {
  return static_cast<base::Nanoseconds>(std::llround(seconds * base::kSecond));
}

class Compiler {
 public:
  Compiler(const ModuleTree& tree, const Trace& trace, const std::vector<int>& stages,
           const Machine& machine)
      : tree_(tree), trace_(trace), stages_(stages), machine_(machine) {}

  StepProgram run() {
    program_.tasks.emplace_back();
    open_.push_back({-1, 0});
    const int count = static_cast<int>(trace_.calls.size());
    for (int call = 0; call < count; ++call) {
      leave_until(trace_.calls[call].caller);
      enter(call);
    }
    leave_until(-1);
    compute(0, trace_.body_after, 0);
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

  void leave_until(int caller) {
    while (open_.back().call != caller) {
      SMP_ASSERT(open_.size() > 1, "the trace's caller ", caller, " is not running");
      const auto& call = trace_.calls[open_.back().call];
      compute(open_.back().task, call.after, call.activation_bytes);
      open_.pop_back();
    }
  }

  void enter(int call) {
    const int task = task_of(trace_.calls[call], open_.back());
    begin_call(task);
    open_.push_back({call, task});
  }

  /// Where `call` runs: with its caller, in the caller's last request, or in a new one.
  int task_of(const TracedCall& call, OpenCall& caller) {
    const int stage = stages_[call.module];
    if (caller.request >= 0 && program_.tasks[caller.request].stage == stage) {
      compute(caller.request, call.before, 0);
      program_.tasks[caller.request].back = travel(call.output_bytes);
      return caller.request;
    }
    compute(caller.task, call.before, 0);
    caller.request = -1;
    if (program_.tasks[caller.task].stage == stage) return caller.task;
    const int task = request(call, caller.task, stage);
    if (caller.call >= 0 && tree_.nodes[trace_.calls[caller.call].module].sequential) {
      caller.request = task;
    }
    return task;
  }

  int request(const TracedCall& call, int caller, int stage) {
    const int task = static_cast<int>(program_.tasks.size());
    program_.tasks.push_back(
        {stage, call.module, caller, -1, -1, travel(call.input_bytes), travel(call.output_bytes)});
    append(caller).callee = task;
    return task;
  }

  base::Nanoseconds travel(std::int64_t bytes) const { return nanoseconds(machine_.travel(bytes)); }

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

  /// A routed call begins: after a long stretch the runtime looks for answers here.
  void begin_call(int task) {
    const int last = program_.tasks[task].last;
    const bool joins = ends_with_computation(task) && seconds_[last] <= kLongWork;
    (joins ? program_.operations[last] : append(task)).turn = true;
  }

  void compute(int task, double seconds, std::int64_t activation_bytes) {
    if (seconds == 0 && activation_bytes == 0) return;
    if (!ends_with_computation(task)) append(task);
    const auto& owner = program_.tasks[task];
    seconds_[owner.last] += seconds / machine_.speed(owner.stage);
    program_.operations[owner.last].activation_bytes += activation_bytes;
  }

  void price_operations() {
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      program_.operations[i].forward = nanoseconds(seconds_[i]);
      program_.operations[i].backward = nanoseconds(seconds_[i] * trace_.backward_ratio);
    }
  }

  const ModuleTree& tree_;
  const Trace& trace_;
  const std::vector<int>& stages_;
  const Machine& machine_;
  StepProgram program_;
  std::vector<double> seconds_;  // of every operation, at the task's speed
  std::vector<OpenCall> open_;
};

}  // namespace

StepProgram compile(const ModuleTree& tree, const Trace& trace, const std::vector<int>& stages,
                    const Machine& machine) {
  SMP_ASSERT(stages.size() == tree.nodes.size(), stages.size(), " stages of ", tree.nodes.size(),
             " modules");
  return Compiler(tree, trace, stages, machine).run();
}

}  // namespace smp::partition
