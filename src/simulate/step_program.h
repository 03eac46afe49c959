// simulate/step_program.h: traced microbatches on their stages, as a short list of operations that
// the simulator can run many times. Paper §4.1, §4.2.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::simulate {

/// A computation on the task's stage, or a request to another stage.
struct Operation {
  int callee = -1;               ///< task that is asked for; -1: computation
  int previous = -1, next = -1;  ///< of the same task; -1: none
  bool may_yield = false;        ///< begins with a routed call, where it may give way to others
  base::Nanoseconds forward = 0, backward = 0;
  base::Nanoseconds weights = 0;  ///< the part of `backward` that gives gradients of weights
  /// The bytes that are live from here to its backward; of a request: those that are live in its
  /// caller until the answer.
  std::int64_t activation_bytes = 0;
  /// The bytes of gradients while it computes backward, beyond its activations; of a request: while
  /// it waits.
  std::int64_t gradient_bytes = 0;
};

/// The work of one fiber: the step body, or one request.
struct Task {
  int stage = 0;
  int module = -1;            ///< that is asked for; -1: the step body
  int caller = -1;            ///< task that asks
  int first = -1, last = -1;  ///< operations; -1: none
  /// A message with inputs or outputs, or with their gradients.
  struct Travel {
    base::Nanoseconds duration = 0;
    std::int64_t bytes = 0;
  };
  Travel there, back;
  /// The task that gets the result in the place of the caller, which only passes it on there and
  /// asks nothing else of it meanwhile; -1: the caller gets it.
  int passed_on_to = -1;
  int passed_on_by = -1;  ///< the other way round, which is that of gradients; -1: the caller
  /// True if the result is the loss, with which the body does nothing else: the backward may begin
  /// here, before the body has it.
  bool gives_loss = false;

  bool is_body() const noexcept { return caller < 0; }
};

/// The operations and tasks of the traced microbatches. Neighbouring compute intervals of one task
/// are one operation, unless a long one ends where the runtime would look for answers.
struct StepProgram {
  std::vector<Operation> operations;
  std::vector<Task> tasks;
  /// The first task, the body, of each microbatch that was traced; its other tasks follow.
  std::vector<int> bodies;
  std::vector<std::vector<int>> modules;  ///< by operation: those that compute in it

  std::size_t num_traced() const noexcept { return bodies.size(); }
  /// Returns the task after the last one of traced microbatch `traced`.
  int end_of(std::size_t traced) const noexcept {
    return traced + 1 < bodies.size() ? bodies[traced + 1] : static_cast<int>(tasks.size());
  }
};

/// The time of computing between two requests below which a caller, if it keeps nothing, only
/// passes the result of the first on: one operator takes 3 us (trial/operators/operator_work.cpp),
/// and less is the price of the call. A trace does not tell which tensors a call gets, so requests
/// without anything between them are taken to depend on each other; if they do not, the runtime may
/// be faster, since it has both in flight.
inline constexpr base::Nanoseconds kOnlyPassesOn = 2 * base::kMicrosecond;

/// Compiles a trace. Results are passed on if the machine does so and no module keeps state in the
/// order of calls, for which the runtime awaits every call.
/// @param stages  of every module of the model, by the trace's numbers
/// @throws InternalError  the trace calls a module that has no stage
[[nodiscard]] StepProgram compile(const Trace& trace, const std::vector<int>& stages,
                                  const Machine& machine);

}  // namespace smp::simulate
