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

/// Runs the forward and backward requests of a step, and keeps the records between them. Threads:
/// the rank's.
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

  /// Take what pp_rank 0 says: the microbatch's forward is done on all ranks, or its body has
  /// ended. The microbatch ends here once no weight part of it is left.
  void forward_done(int microbatch) { entry_.forward_done(microbatch); }
  void microbatch_done(int microbatch) { entry_.microbatch_done(microbatch); }

  /// Forgets all requests because the step is over.
  void end_step() noexcept;
  /// The forward requests that wait for tensors of other ranks, for reports.
  const WaitingRequests& waiting() const noexcept { return forward_.waiting(); }
  /// The microbatch and module of each backward request that waits for gradients and whose forward
  /// has ended here.
  std::vector<std::pair<std::int32_t, ModuleId>> backwards_waiting() const {
    return backward_.waiting();
  }
  /// Frees the records that others released. Runs on a fiber, because it runs destructors of user
  /// code.
  void free_released();

 private:
  ServerCore& core_;
  RequestEntry entry_;
  BackwardRequests backward_;
  ForwardRequests forward_;
};

}  // namespace smp::server
