// server/requests/request_runner.h: runs what other ranks ask for (paper §4.2, App. B).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "server/requests/backward_requests.h"
#include "server/requests/forward_requests.h"
#include "server/requests/request_entry.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Forward and backward requests of a step, and the records that lie between them. Threads: the
/// rank's.
class RequestRunner {
 public:
  RequestRunner(ServerCore& core, FailureControl& failures);

  // Messages of other ranks; safe in a poll. What they throw fails the step: options or modules
  // differ between ranks.
  void on_message(PpRank source, ForwardRequest&& request);
  void on_message(PpRank source, BackwardRequest&& request);
  void on_message(ReleaseRecord&& message);
  void on_message(PpRank source, const PassOn& message);
  void on_message(PassedOn&& message);
  void on_message(PpRank source, const ReleaseOutputs& message);

  // On a worker. What the module or a hook throws goes to the caller as an ErrorResponse.
  void run(ForwardTask&& task) { forward_.run(std::move(task)); }
  void run(BackwardTask&& task) { backward_.run(std::move(task)); }

  /// Of a microbatch, by word of pp_rank 0. It ends here once no weight part of it is left.
  void forward_done(int microbatch) { entry_.forward_done(microbatch); }
  void microbatch_done(int microbatch) { entry_.microbatch_done(microbatch); }

  /// The step is over.
  void end_step() noexcept;
  /// What waits for tensors of other ranks, for reports.
  const WaitingRequests& waiting() const noexcept { return forward_.waiting(); }
  /// Microbatch and module of each whose forward has ended here.
  std::vector<std::pair<std::int32_t, ModuleId>> backwards_waiting() const {
    return backward_.waiting();
  }
  /// Frees the records that others released. On a fiber: it runs destructors of user code.
  void free_released();

 private:
  ServerCore& core_;
  RequestEntry entry_;
  BackwardRequests backward_;
  ForwardRequests forward_;
};

}  // namespace smp::server
