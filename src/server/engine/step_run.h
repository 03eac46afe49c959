// server/engine/step_run.h: a step as it comes: bodies and requests run when control flow reaches
// them (paper §4.1, §4.3).
#pragma once

#include <c10/util/FunctionRef.h>

#include "server/calls/call_router.h"
#include "server/engine/body_backward.h"
#include "server/replay/step_closings.h"
#include "server/requests/request_runner.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"
#include "server/step/step_engine.h"

namespace smp::server {

/// Threads: the rank's; the user's fiber serves during a step.
class StepRun final : public StepEngine {
 public:
  StepRun(ServerCore& core, CallRouter& router, RequestRunner& runner, FailureControl& failures,
          StateCheck& states)
      : core_(core),
        router_(router),
        runner_(runner),
        failures_(failures),
        states_(states),
        backward_(core, failures, [this](int microbatch) { forward_done(microbatch); }),
        closings_(core) {}

  /// Begins the next step, which is to do `task`; messages of it may be taken from now on. The step
  /// before must have ended. Neither suspends nor sends.
  void begin(const StepTask& task);
  /// Runs the step up to its outputs: the bodies on pp_rank 0, elsewhere what these ask for.
  /// Suspends the calling fiber, which does the deferred work meanwhile; returns once no worker is
  /// busy.
  /// @throws what ended the step; the next one works.
  void run();

  // StepEngine
  int current_microbatch() const noexcept override;
  std::optional<double> current_weight() const override;
  void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
                bool keep_graph) override;

  // Messages; safe in a poll.
  void on_message(const ForwardDone& message);
  void on_message(const MicrobatchDone& message);
  /// @throws UsageError  the ranks differ in StepTask::facts.
  void on_message(PpRank source, const FinishGradients& message);
  /// Of a step that is over here.
  void on_late_message(PpRank source, const FinishGradients& message) {
    closings_.on_late_message(source, message);
  }
  void on_message(StepEnded&& message);
  /// To be called while nothing moves: tells what is withheld. @return whether there was something
  bool tell_withheld();

  // On a worker.
  void run(BodyTask task);

 private:
  void serve_until(c10::function_ref<bool()> done);
  void run_deferred();
  void finish_gradients();
  void end();
  void end_well();
  void deliver(const StepEnded& message);
  void check_left_settings() const;
  void leave_settings(ExecutionScope& scope);
  void start_microbatches();
  void body_finished(const ExecutionIdentity& body);
  void forward_done(int microbatch);

  ServerCore& core_;
  CallRouter& router_;
  RequestRunner& runner_;
  FailureControl& failures_;
  StateCheck& states_;
  BodyBackward backward_;
  StepClosings closings_;
};

}  // namespace smp::server
