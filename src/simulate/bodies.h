// simulate/bodies.h: the step bodies on stage 0, as the module server starts, holds and ends them.
#pragma once

#include <cstdint>

#include "schedule/step_progress.h"
#include "simulate/step_state.h"

namespace smp::simulate {

/// Turns the answers of schedule::StepProgress into fibers that are ready.
class Bodies {
 public:
  /// @param step  is referred to, so it outlives this
  explicit Bodies(StepState& step);

  /// Makes the bodies that may start ready.
  void start();

  /// Tells that the body `fiber` is at the end of its forward.
  /// @return true if it goes on, to its backward; else it waits at the gate.
  bool goes_on_to_backward(int fiber);
  /// Tells that the body `fiber` has asked for its loss, and would only wait for it.
  /// @return true if its backward may begin where the loss is; the body is then in its backward.
  bool leaves_backward_to_loss(int fiber);
  /// Tells that the body `fiber` has done all that it had to.
  void finish(int fiber);

  bool all_finished() const noexcept { return progress_.all_finished(); }
  int finished() const noexcept { return progress_.progress().finished; }

 private:
  void finish_forward(const SimulatedFiber& body);
  void open_gate();

  StepState& step_;
  schedule::StepProgress& progress_;  // of stage 0
};

}  // namespace smp::simulate
