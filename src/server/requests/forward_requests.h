// server/requests/forward_requests.h: modules that other ranks call here (paper §4.2): the module
// runs, and a record of its graph is kept for the backward.
#pragma once

#include <vector>

#include "module/node_pointer.h"
#include "server/requests/early_requests.h"
#include "server/requests/request_answer.h"
#include "server/requests/request_entry.h"
#include "server/step/failure_control.h"
#include "server/step/kept_outputs.h"
#include "server/step/server_core.h"
#include "server/step/waiting_requests.h"
#include "server/values/watched_arguments.h"

namespace smp::server {

/// Runs modules of this rank for other ranks. Threads: the rank's.
class ForwardRequests {
 public:
  ForwardRequests(ServerCore& core, FailureControl& failures, RequestEntry& entry,
                  EarlyRequests& early);

  // Messages of other ranks; safe in a poll. What they throw fails the step: options or modules
  // differ between ranks.
  void on_message(PpRank source, ForwardRequest&& request);
  void on_message(PpRank source, const PassOn& message);
  /// Takes an argument that another rank has sent for a forward request.
  void on_message(PassedOn&& message);
  /// Releases the outputs of these requests of `caller`, which will not be asked for any more.
  void release(PpRank caller, const std::vector<RequestId>& requests);

  /// Runs `task` on the calling worker fiber, which may be suspended. An exception of the module
  /// goes to the caller as an ErrorResponse.
  void run(ForwardTask&& task);
  /// The requests that wait for tensors of other ranks, for reports.
  const WaitingRequests& waiting() const noexcept { return waiting_; }
  /// Forgets kept outputs and waiting requests because the step is over.
  void clear() noexcept;

 private:
  void start(WaitingRequests::Forward&& forward, bool input_failed);
  void failed(const RequestName& name, ExecutionId execution);
  void take_promised(PpRank caller, ForwardRequest& request) const;
  ForwardResponse run_forward(PpRank source, ForwardRequest& request,
                              const ExecutionIdentity& identity);
  Packet run_module(const CallEntry& entry, RoutedBase& module, Packet& packet,
                    const WatchedArguments& arguments);
  std::vector<KeptOutput> kept_outputs(const std::vector<at::Tensor>& tensors,
                                       const char* path) const;
  ForwardResponse keep_record(PpRank source, Packet&& result, NodePointer<BoundaryInput> inputs,
                              const WatchedArguments& arguments, const ForwardRequest& request,
                              const ExecutionIdentity& identity, bool changed_settings);

  ServerCore& core_;
  FailureControl& failures_;
  RequestEntry& entry_;
  EarlyRequests& early_;
  RequestAnswer answer_;
  KeptOutputs kept_;
  WaitingRequests waiting_;
};

}  // namespace smp::server
