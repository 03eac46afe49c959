// server/engine/dynamic_engine.h: a step as it comes: bodies and requests run when control flow
// reaches them (paper §4.1, §4.3).
#pragma once

#include <map>
#include <optional>

#include "schedule/work_order.h"
#include "server/calls/call_router.h"
#include "server/engine/body_backward.h"
#include "server/replay/recorded_steps.h"
#include "server/requests/request_runner.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"
#include "server/step/step_engine.h"

namespace smp::server {

/// Carries out a step by messages between ranks. Threads: the rank's; the user's fiber serves
/// during a step.
class DynamicEngine final : public StepEngine {
 public:
  DynamicEngine(ServerCore& core, CallRouter& router, RequestRunner& runner,
                FailureControl& failures, StateCheck& states)
      : core_(core),
        router_(router),
        runner_(runner),
        failures_(failures),
        states_(states),
        backward_(core, failures, [this](int microbatch) { forward_done(microbatch); }),
        recorded_(core.options.static_mode) {}

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
  void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
                bool keep_graph) override;

  // Messages; safe in a poll.
  void on_message(const ForwardDone& message);
  void on_message(const MicrobatchDone& message);
  /// @throws UsageError  the ranks differ in StepTask::facts.
  void on_message(PpRank source, const FinishGradients& message);
  /// Takes a message about a step that has ended here already, because it was replayed.
  void on_late_message(PpRank source, const FinishGradients& message);
  void on_message(StepEnded&& message);
  /// Tells the other ranks the ends of microbatches that a replayed step has withheld. For use
  /// while no message moves; safe in a poll. @return true if there were any
  bool tell_all_ends();

  // On a worker.
  void run(BodyTask task);

 private:
  void serve_until(bool (DynamicEngine::*done)() const noexcept);
  void run_deferred();
  bool microbatches_are_done() const noexcept;
  bool ranks_are_done() const noexcept;
  bool may_replay() const;
  void tell_others(const Message& message);
  void tell_end(const MicrobatchDone& message);
  void finish_gradients();
  void tell_first_stage(FinishGradients&& finished);
  void tell_others_to_finish(const FinishGradients& own);
  void require_same_facts(GlobalRank other, const std::string& facts) const;
  void end();
  void note_end(StepEnded& message);
  RecordedSteps::Kind kind_of_step() const noexcept;
  void remember_order(const StepEnded& message);
  StepEnded last_message() const;
  void take_outputs();
  void deliver(const StepEnded& message);
  bool outputs_have_left() const noexcept;
  void check_left_settings() const;
  void leave_settings(ExecutionScope& scope);
  void start_microbatches();
  void fetch_outputs(int microbatch) const;
  void body_finished(const ExecutionIdentity& body);
  void forward_done(int microbatch);

  ServerCore& core_;
  CallRouter& router_;
  RequestRunner& runner_;
  FailureControl& failures_;
  StateCheck& states_;
  BodyBackward backward_;
  RecordedSteps recorded_;  // pp_rank 0
  bool news_ = false;       // pp_rank 0: some rank has said something new of the running step
  std::map<int, schedule::WorkOrder> orders_;  // of this rank, in the fastest of the recorded steps
  int steps_that_stood_still_ = 0;             // pp_rank 0: while ends were withheld
  bool keeps_order_ = false;                   // later steps do
  std::optional<schedule::RecordedOrder> order_;  // of the running step, if it does
  std::shared_ptr<d2d::Departure> outputs_leaving_;
};

}  // namespace smp::server
