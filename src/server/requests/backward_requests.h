// server/requests/backward_requests.h: backward passes that other ranks ask for (paper §4.2, App.
// B): the record of a forward is walked, and gradients go to its caller, or past him to who needs
// them.
#pragma once

#include <optional>

#include "server/requests/gradient_graphs.h"
#include "server/requests/request_answer.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Runs backward over records of this rank for their callers. Threads: the rank's.
class BackwardRequests {
 public:
  BackwardRequests(ServerCore& core, FailureControl& failures)
      : core_(core), failures_(failures), answer_(core, failures), graphs_(core) {}

  /// Of another rank; safe in a poll.
  void on_message(PpRank source, BackwardRequest&& request);
  /// As RequestStarter::start().
  void start(BackwardTask&& task, bool input_failed);
  /// On a worker. What a hook throws goes to the caller as an ErrorResponse.
  void run(BackwardTask&& task);

 private:
  struct WeightWork;
  void launch(BackwardTask&& task);
  ModuleId module_of(RecordId record) const;
  bool has_one_number(RecordId record, std::int32_t output) const;
  variable_list run_backward_of(BackwardRequest& request, ExecutionScope& scope,
                                std::optional<WeightWork>& rest);
  BackwardResponse graph_of_gradients(BackwardRequest& request, ExecutionScope& scope);
  fiber::WaitReason wait_for_turn(const Record& record) const;
  void run_rest(WeightWork& rest, ExecutionScope& scope);
  BackwardResponse response_to(PpRank caller, BackwardRequest& request, variable_list&& gradients,
                               const char* path);
  void send_along(const GradientRoute& route, PassedOn&& message);
  void fail_routes(PpRank caller, const BackwardRequest& request);
  SettingsBoard::View settings_of(const BackwardRequest& request, const Record& record);
  variable_list gradients_of_inputs(const Record& record, const edge_list& roots,
                                    variable_list&& gradients, bool keep_graph);
  Record take_record(const BackwardRequest& request) const;

  ServerCore& core_;
  FailureControl& failures_;
  RequestAnswer answer_;
  GradientGraphs graphs_;
};

}  // namespace smp::server
