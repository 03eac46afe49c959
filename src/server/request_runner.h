// server/request_runner.h: runs what other ranks ask for (paper §4.2, App. B).
#pragma once

#include <utility>

#include "server/failure_control.h"
#include "server/server_core.h"
#include "server/watched_arguments.h"

namespace smp::server {

/// Threads: the rank's.
class RequestRunner {
 public:
  RequestRunner(ServerCore& core, FailureControl& failures) : core_(core), failures_(failures) {}

  // Messages of other ranks; safe in a poll. What they throw fails the step: options or modules
  // differ between ranks.
  void on_message(PpRank source, ForwardRequest&& request);
  void on_message(PpRank source, BackwardRequest&& request);
  void on_message(ReleaseRecord&& message);

  // On a worker. What the module or a hook throws goes to the caller as an ErrorResponse.
  void run(ForwardTask&& task);
  void run(BackwardTask&& task);

  /// Frees the records that others released. On a fiber: it runs destructors of user code.
  void free_released();

 private:
  template <class Run>
  void answer(PpRank source, RequestId request, ExecutionScope& scope, Run&& run);
  ForwardResponse run_forward(ForwardRequest& request, const ExecutionIdentity& identity);
  Packet run_module(const CallEntry& entry, RoutedBase& module, Packet& packet,
                    const WatchedArguments& arguments);
  ForwardResponse keep_record(Packet&& result, c10::intrusive_ptr<BoundaryInput> inputs,
                              const WatchedArguments& arguments, const ForwardRequest& request,
                              const ExecutionIdentity& identity);
  BackwardResponse run_backward_of(BackwardRequest& request, ExecutionScope& scope);
  SettingsBoard::View settings_of(const BackwardRequest& request, const Record& record);
  BackwardResponse gradients_of_inputs(const Record& record, const edge_list& roots,
                                       variable_list&& gradients, bool keep_graph);
  Record take_record(const BackwardRequest& request) const;

  ServerCore& core_;
  FailureControl& failures_;
};

}  // namespace smp::server
