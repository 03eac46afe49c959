// server/requests/request_runner.h: runs what other ranks ask for (paper §4.2, App. B).
#pragma once

#include <utility>

#include "server/requests/backward_requests.h"
#include "server/requests/forward_requests.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Forward and backward requests of a step, and the records that lie between them. Threads: the
/// rank's.
class RequestRunner final : public RequestStarter {
 public:
  RequestRunner(ServerCore& core, FailureControl& failures)
      : core_(core), backward_(core, failures), forward_(core, failures) {}

  // Messages of other ranks; safe in a poll. What they throw fails the step: options or modules
  // differ between ranks.
  void on_message(PpRank source, ForwardRequest&& request);
  void on_message(PpRank source, BackwardRequest&& request);
  void on_message(ReleaseRecord&& message);
  void on_message(PpRank source, const PassOn& message) { forward_.pass_on(source, message); }
  void on_message(PassedOn&& message) { core_.step->admission.take(std::move(message)); }
  void on_message(PpRank source, const ReleaseOutputs& message);

  // RequestStarter
  void start(ForwardTask&& task, bool input_failed) override;
  void start(BackwardTask&& task, bool input_failed) override;
  void ask(PpRank caller, const PassOn& output) override { forward_.pass_on(caller, output); }

  // On a worker. What the module or a hook throws goes to the caller as an ErrorResponse.
  void run(ForwardTask&& task) { forward_.run(std::move(task)); }
  void run(BackwardTask&& task) { backward_.run(std::move(task)); }

  /// A microbatch is done, by word of pp_rank 0. It ends here once no weight part of it is left.
  void microbatch_done(int microbatch);
  /// The step is over.
  void end_step() noexcept;
  /// Frees the records that others released. On a fiber: it runs destructors of user code.
  void free_released();

 private:
  ServerCore& core_;
  BackwardRequests backward_;
  ForwardRequests forward_;
};

}  // namespace smp::server
