// server/requests/forward_requests.h: modules that other ranks call here (paper §4.2): the module
// runs, and a record of its graph is kept for the backward.
#pragma once

#include <vector>

#include "module/node_pointer.h"
#include "server/requests/request_answer.h"
#include "server/step/failure_control.h"
#include "server/step/kept_outputs.h"
#include "server/step/server_core.h"
#include "server/values/watched_arguments.h"

namespace smp::server {

/// Runs modules of this rank for other ranks. Threads: the rank's.
class ForwardRequests {
 public:
  ForwardRequests(ServerCore& core, FailureControl& failures);

  // Messages of other ranks; safe in a poll. What they throw fails the step: options or modules
  // differ between ranks.
  void on_message(PpRank source, ForwardRequest&& request);
  /// An output is wanted.
  void pass_on(PpRank caller, const PassOn& message) { kept_.pass_on(caller, message); }
  /// Outputs of these requests of `caller` will not be asked for any more.
  void release(PpRank caller, const std::vector<RequestId>& requests);

  /// As RequestStarter::start().
  void start(ForwardTask&& task, bool input_failed);
  /// On a worker. What the module throws goes to the caller as an ErrorResponse.
  void run(ForwardTask&& task);
  /// The step is over.
  void clear() noexcept { kept_.clear(); }

 private:
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
  RequestAnswer answer_;
  KeptOutputs kept_;
};

}  // namespace smp::server
