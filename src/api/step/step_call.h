// api/step/step_call.h: one call of a step on this rank.
#pragma once

#include <c10/core/InferenceMode.h>

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "api/model/model_state.h"
#include "api/planning/tracing.h"
#include "api/rank/rank.h"
#include "api/rank/session_parts.h"
#include "api/replicas/replica_step.h"
#include "api/state/session_state.h"
#include "api/step/microbatches.h"
#include "server/protocol/execution_modes.h"
#include "server/step/step_engine.h"
#include "smp/step.h"

namespace smp::detail {

/// One call: the arguments in microbatches, the models placed, the server's step, its outputs.
/// Threads: the rank's; suspends the user's fiber, which serves meanwhile.
class StepCall {
 public:
  /// All of them outlive it. @throws UsageError  the schedule lists fewer microbatches
  StepCall(const SessionParts& session, const StepOptions& options, SeenCuts& seen);
  StepCall(const StepCall&) = delete;
  StepCall& operator=(const StepCall&) = delete;

  /// Runs it, once. @throws what ended it
  StepResult run(std::vector<StepArgument> arguments, const StepBody& body);

 private:
  void require_listed() const;
  StepResult idle(const StepBody& body);
  ComingStep coming_step(const StepBody& body, const StepPreview* preview) const;
  std::string loss() const;
  void take_buffers();
  void run_pipeline();
  void keep_state_in_order(const StepBody& body);
  void warn_of_idle_stages() const;
  void compare_ranks(const StepBody& body);
  std::string use_of_gradients() const;
  void prepare_body(std::vector<StepArgument> arguments, const StepBody& body);
  void throw_in_body(std::exception_ptr error);
  void split(std::vector<StepArgument> arguments, const StepBody& body);
  void tell_of_division() const;
  StepPreview preview_of(const StepBody& body) const;
  void run_body(int microbatch, const StepBody& body);
  void take_weights();

  const SessionParts& session_;
  Rank& rank_ = session_.rank;
  SessionState& state_ = session_.state;
  const StepOptions& options_;
  SeenCuts& seen_;
  server::StepTask task_;
  StepKinds::Kind kind_ = 0;
  int wanted_ = 1;  // microbatches; there may be fewer
  StepResult result_;
  // Of the caller, for the fibers that run the body: evaluation under NoGradGuard, autocast.
  const server::ExecutionModes modes_;
  const bool inference_ = c10::InferenceMode::is_enabled();  // of the caller too
  ReplicaStep among_replicas_;
  std::optional<Microbatches> inputs_;
};

}  // namespace smp::detail
