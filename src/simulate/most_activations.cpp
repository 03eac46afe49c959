// simulate/most_activations.cpp: walks every request forward and back, without a clock.
#include "simulate/most_activations.h"

#include <algorithm>

#include "base/check.h"
#include "simulate/step_program.h"

namespace smp::simulate {
namespace {

using Bytes = std::int64_t;

/// The bytes of one request, or of the body, at its worst moments.
struct Worst {
  Bytes settled = 0;    ///< while its stage may be at something else
  Bytes computing = 0;  ///< on top of that, while it computes
};

/// Returns the bytes of the gradients that a task sends at its end, which its stage holds until
/// they are fetched.
Bytes gradients_sent_by(const StepProgram& program, const Task& task) {
  if (task.passed_on_by < 0) return task.there.bytes;
  return program.tasks[static_cast<std::size_t>(task.passed_on_by)].back.bytes;
}

class TaskWalk {
 public:
  TaskWalk(const StepProgram& program, bool keeps_until_weights)
      : program_(program), keeps_until_weights_(keeps_until_weights) {}

  Worst run(int task) {
    const Task& own = program_.tasks[task];
    settle(own.there.bytes);
    for (int i = own.first; i >= 0; i = program_.operations[i].next) {
      forward(program_.operations[i]);
    }
    settle(own.back.bytes);  // the gradient of its result, which may come before it begins
    settle(arriving(own));
    for (int i = own.last; i >= 0; i = program_.operations[i].previous) {
      backward(program_.operations[i]);
    }
    send(own);
    return {settled_, std::max<Bytes>(0, computing_ - settled_)};
  }

 private:
  /// Returns the bytes of gradients of the inputs of its requests, which may all come before the
  /// first is looked at: a trace does not tell which requests need each other. Requests in a row
  /// are taken to pass results on, and their gradients do not come here.
  Bytes arriving(const Task& own) const {
    Bytes bytes = 0;
    for (int i = own.first; i >= 0; i = program_.operations[i].next) {
      const int callee = program_.operations[i].callee;
      if (callee < 0 || program_.tasks[callee].passed_on_by >= 0) continue;
      bytes += program_.tasks[callee].there.bytes;
    }
    return bytes;
  }

  void forward(const Operation& operation) {
    if (operation.callee < 0) {
      live_ += operation.activation_bytes;
      return settle(0);
    }
    const Task& callee = program_.tasks[operation.callee];
    settle(operation.activation_bytes + (callee.passed_on_to < 0 ? callee.back.bytes : 0));
  }

  void backward(const Operation& operation) {
    if (operation.callee >= 0) {
      const Task& callee = program_.tasks[operation.callee];
      // What it sends it holds until that is fetched, before the answer comes.
      const Bytes sent = callee.passed_on_to < 0 ? callee.back.bytes : 0;
      const Bytes answer = callee.passed_on_by < 0 ? callee.there.bytes : 0;
      settle(operation.gradient_bytes + std::max(sent, answer));
      return;
    }
    computing_ = std::max(computing_, live_ + operation.gradient_bytes);
    if (!keeps_until_weights_) live_ -= operation.activation_bytes;
  }

  /// Sends the gradients of its inputs, which may be there still when those of weights are
  /// computed.
  void send(const Task& own) {
    const Bytes sent = gradients_sent_by(program_, own);
    settle(sent);
    for (int i = own.last; keeps_until_weights_ && i >= 0; i = program_.operations[i].previous) {
      computing_ = std::max(computing_, live_ + sent + program_.operations[i].gradient_bytes);
    }
  }

  void settle(Bytes moving) { settled_ = std::max(settled_, live_ + moving); }

  const StepProgram& program_;
  const bool keeps_until_weights_;
  Bytes live_ = 0, settled_ = 0, computing_ = 0;
};

bool splits_backward(const SimulationOptions& options, int stage) {
  return schedule::splits_any_backward(*options.schedule, stage, options.microbatches);
}

/// The bytes that a microbatch needs on each stage, at its worst moments.
struct Needs {
  explicit Needs(std::size_t stages) : settled(stages), computing(stages), outside(stages) {}

  std::vector<Bytes> settled, computing;
  std::vector<Bytes> outside;  ///< before its requests begin, or when they have ended
};

/// @param splits  true for stages that may compute weight gradients later
Needs needs_of(const StepProgram& program, std::size_t traced, const std::vector<bool>& splits) {
  Needs needs(splits.size());
  for (int task = program.bodies[traced]; task < program.end_of(traced); ++task) {
    const int stage = program.tasks[task].stage;
    const auto worst = TaskWalk(program, splits[static_cast<std::size_t>(stage)]).run(task);
    needs.settled[stage] += worst.settled;
    needs.computing[stage] = std::max(needs.computing[stage], worst.computing);
    const Task& own = program.tasks[task];
    needs.outside[stage] += std::max(own.there.bytes, gradients_sent_by(program, own));
  }
  return needs;
}

/// Returns for each stage the needs of the worst microbatch. Timing decides which microbatches are
/// there together: all may be of the worst kind.
Needs worst_needs(const StepProgram& program, const Machine& machine,
                  const SimulationOptions& options) {
  Needs worst(static_cast<std::size_t>(machine.stages));
  std::vector<bool> splits;
  for (int s = 0; s < machine.stages; ++s) splits.push_back(splits_backward(options, s));
  const auto take = [](std::vector<Bytes>& most, const std::vector<Bytes>& own) {
    for (std::size_t s = 0; s < most.size(); ++s) most[s] = std::max(most[s], own[s]);
  };
  for (std::size_t traced = 0; traced < program.num_traced(); ++traced) {
    const auto own = needs_of(program, traced, splits);
    take(worst.settled, own.settled);
    take(worst.computing, own.computing);
    take(worst.outside, own.outside);
  }
  return worst;
}

/// Returns the most microbatches whose requests wait at the window of `stage`, or have ended there
/// without that who asked has fetched their gradients, while it keeps as many as it may. Those that
/// it keeps are in flight on stage 0 too, unless only their weight gradients are left: nobody waits
/// for these.
int most_outside(const SimulationOptions& options, int stage) {
  const int alive = options.schedule->most_alive(stage, options.microbatches);
  const int in_flight = options.schedule->most_alive(0, options.microbatches);
  if (splits_backward(options, stage)) return std::min(in_flight, options.microbatches - alive);
  return std::max(0, in_flight - alive);
}

}  // namespace

std::vector<Bytes> most_activations(const Trace& trace, const std::vector<int>& stages,
                                    const Machine& machine, const SimulationOptions& options) {
  SMP_ASSERT(options.schedule != nullptr && options.microbatches >= 1, options.microbatches,
             " microbatches");
  std::vector<Bytes> most(static_cast<std::size_t>(machine.stages), 0);
  if (options.forward_only) return most;
  const auto program = compile(trace, stages, machine);
  const Needs needs = worst_needs(program, machine, options);
  for (int stage = 0; stage < machine.stages; ++stage) {
    const int alive = options.schedule->most_alive(stage, options.microbatches);
    const int outside = most_outside(options, stage);
    most[stage] =
        alive * needs.settled[stage] + needs.computing[stage] + outside * needs.outside[stage];
  }
  return most;
}

}  // namespace smp::simulate
