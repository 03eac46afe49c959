// server/engine/module_server.h: one rank at work: it runs requests of other ranks on worker
// fibers, sends its own, and carries steps from their first microbatch to their last
// (paper §4.1, §4.2, App. B).
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "schedule/step_trace.h"
#include "server/calls/call_router.h"
#include "server/engine/stall_control.h"
#include "server/engine/step_run.h"
#include "server/requests/request_runner.h"
#include "server/step/call_places.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Owns the parts of one rank's server, and hands messages to them. Threads: the rank's; the user's
/// thread is lent to it during a step.
class ModuleServer {
 public:
  /// Becomes the CallHandler of the calling fiber, until it ends.
  /// @param stages    the job's rank of every stage of this pipeline, this one among them
  /// @param on_abort  called with the reason when all waits of this rank are to end
  ModuleServer(d2d::Channel& channel, std::vector<GlobalRank> stages, const ServerOptions& options,
               StallControl::OnAbort on_abort);
  ~ModuleServer();

  PpRank rank() const noexcept { return core_.port.rank(); }
  bool in_step() const noexcept { return core_.step != nullptr; }
  /// The number of steps begun so far.
  std::int64_t steps() const noexcept { return core_.port.step(); }
  ModuleTable& modules() noexcept { return core_.scopes.modules; }
  ForeignParameters& foreign() noexcept { return core_.foreign; }
  BufferCopies& copies() noexcept { return core_.copies; }
  ParameterNumbers& parameters() noexcept { return core_.parameters; }
  SpanRecorder& recorder() noexcept { return core_.scopes.recorder; }
  StepEngine& engine() noexcept { return engine_; }
  /// The event that wakes the user's fiber during a step (GradientListener::on_pause).
  fiber::Event& wake() noexcept { return core_.server.wake; }
  SettingsBoard& settings() noexcept { return core_.scopes.settings; }
  module::CallPlaces& places() noexcept { return places_; }
  void set_failure_handler(FailureControl::OnFailure handler) {
    failures_.set_failure_handler(std::move(handler));
  }

  /// Runs one step, and suspends the calling fiber until it is over: runs the bodies on pp_rank 0,
  /// elsewhere what these ask for.
  /// @return start and end on this rank, and the spans, if recording was on
  /// @throws what failed the step, where it did; RemoteError with its text elsewhere; PeerLostError
  ///         if a rank left or all waits were ended. The next step works.
  schedule::StepTrace run_step(const StepTask& task);

  /// Tells the other stages that this rank leaves the job. Must not be called in a step.
  void leave_job();
  /// Ends every wait of this rank: in a step, the step fails; outside, waits throw PeerLostError
  /// with `why`. Safe in a poll.
  void abandon(const std::string& why);
  /// While nothing moves: what steps without control messages leave out, and some rank may wait for
  /// after all. @return whether there was something. Safe in a poll.
  bool tell_what_is_withheld() { return engine_.tell_withheld(); }

  /// The parts that the server's components share; for tests and reports.
  const ServerCore& core() const noexcept { return core_; }

 private:
  void receive(PpRank source, std::int64_t step, Message&& message);
  void dispatch(PpRank source, Message&& message);
  void run_task(WorkerTask&& task);

  /// Describes a fiber that runs no module: "rank 2".
  class Idle;
  struct Early {
    PpRank source;
    std::int64_t step;
    Message message;
  };

  ServerCore core_;
  FailureControl failures_{core_};
  CallPlaces places_{core_};
  StateCheck states_{core_, failures_};
  CallRouter router_{core_, failures_, states_};
  RequestRunner runner_{core_, failures_};
  StepRun engine_{core_, router_, runner_, failures_, states_};
  std::deque<Early> early_;  // of a step that this rank has not begun
  StallControl stalls_;
  std::uint64_t received_ = 0;  // messages, but for those about stalls
  std::unique_ptr<Idle> idle_;
  std::shared_ptr<void> poll_;
};

}  // namespace smp::server
