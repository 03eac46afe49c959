// simulate/step_program.h: a traced microbatch on its stages, as a short list of operations that
// the simulator can run many times. Paper §4.1, §4.2.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::simulate {

/// Computation on the task's stage, or a request to another stage.
struct Operation {
  int callee = -1;               ///< task that is asked for; -1: computation
  int previous = -1, next = -1;  ///< of the same task; -1: none
  bool may_yield = false;        ///< begins with a routed call, where it may give way to others
  base::Nanoseconds forward = 0, backward = 0;
  /// Live from here to its backward; of a request: what is live in its caller until the answer.
  std::int64_t activation_bytes = 0;
  /// Gradients, while it computes backward, beyond its activations; of a request: while it waits.
  std::int64_t gradient_bytes = 0;
};

/// What one fiber runs: the step body (task 0), or one request.
struct Task {
  int stage = 0;
  int module = -1;            ///< that is asked for; -1: the step body
  int caller = -1;            ///< task that asks
  int first = -1, last = -1;  ///< operations; -1: none
  /// Of inputs and of outputs, or of their gradients.
  struct Travel {
    base::Nanoseconds duration = 0;
    std::int64_t bytes = 0;
  };
  Travel there, back;
};

/// Neighbouring compute intervals of one task are one operation, unless a long one ends where the
/// runtime would look for answers.
struct StepProgram {
  std::vector<Operation> operations;
  std::vector<Task> tasks;
};

/// @param stages  of every module of the model, by the trace's numbers
/// @throws InternalError  the trace calls a module that has no stage
[[nodiscard]] StepProgram compile(const Trace& trace, const std::vector<int>& stages,
                                  const Machine& machine);

}  // namespace smp::simulate
