// server/requests/backward_requests.h: backward passes that other ranks ask for (paper §4.2, App.
// B): the record of a forward is walked, and gradients go to its caller, or past him to who needs
// them.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "server/requests/early_requests.h"
#include "server/requests/promised_gradients.h"
#include "server/requests/request_answer.h"
#include "server/requests/request_entry.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Runs backward over records of this rank for their callers. Threads: the rank's.
class BackwardRequests {
 public:
  BackwardRequests(ServerCore& core, FailureControl& failures, RequestEntry& entry);

  // Messages of other ranks; safe in a poll.
  void on_message(PpRank source, BackwardRequest&& request);
  /// Takes a gradient that another rank has sent for a backward request.
  void on_message(PassedOn&& message);

  /// Runs `task` on the calling worker fiber, which may be suspended. An exception goes to the
  /// caller as an ErrorResponse.
  void run(BackwardTask&& task);
  /// The backward requests that name their forward request instead of its record.
  EarlyRequests& early() noexcept { return early_; }
  /// The microbatch and module of each request that waits for gradients and whose forward has ended
  /// here.
  std::vector<std::pair<std::int32_t, ModuleId>> waiting() const;
  /// Forgets all waiting requests because the step is over.
  void clear() noexcept;

 private:
  struct WeightWork;
  void start(BackwardTask&& task, bool input_failed);
  void launch(BackwardTask&& task);
  RecordId record_of(const BackwardTask& task) const;
  bool has_one_number(RecordId record, std::int32_t output) const;
  variable_list run_backward_of(BackwardRequest& request, ExecutionScope& scope,
                                std::optional<WeightWork>& rest);
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
  RequestEntry& entry_;
  RequestAnswer answer_;
  PromisedGradients promised_;
  EarlyRequests early_;
};

}  // namespace smp::server
