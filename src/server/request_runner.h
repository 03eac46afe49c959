// server/request_runner.h: runs what other ranks ask for (paper §4.2, App. B).
#pragma once

#include <optional>
#include <utility>

#include "module/node_pointer.h"
#include "server/early_requests.h"
#include "server/failure_control.h"
#include "server/kept_outputs.h"
#include "server/promised_gradients.h"
#include "server/server_core.h"
#include "server/watched_arguments.h"

namespace smp::server {

/// Threads: the rank's.
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
  void run(ForwardTask&& task);
  void run(BackwardTask&& task);

  /// Of a microbatch, by word of pp_rank 0. It ends here once no weight part of it is left.
  void forward_done(int microbatch);
  void microbatch_done(int microbatch);

  /// The step is over.
  void end_step() noexcept;
  /// What waits for tensors of other ranks, for reports.
  const WaitingRequests& waiting() const noexcept { return waiting_; }
  /// Microbatch and module of each whose forward has ended here.
  std::vector<std::pair<std::int32_t, ModuleId>> backwards_waiting() const;
  /// Frees the records that others released. On a fiber: it runs destructors of user code.
  void free_released();

 private:
  struct WeightWork;
  template <class Run>
  void answer(PpRank source, RequestId request, ExecutionScope& scope, Run&& run);
  void start(WaitingRequests::Forward&& forward, bool input_failed);
  void start(BackwardTask&& task, bool input_failed);
  void enter(ForwardTask&& task);
  void start_entering();
  void drop(int microbatch);
  void take_promised(ForwardRequest& request) const;
  ForwardResponse run_forward(PpRank source, ForwardRequest& request,
                              const ExecutionIdentity& identity);
  Packet run_module(const CallEntry& entry, RoutedBase& module, Packet& packet,
                    const WatchedArguments& arguments);
  std::vector<KeptOutput> kept_outputs(const std::vector<at::Tensor>& tensors,
                                       const char* path) const;
  ForwardResponse keep_record(PpRank source, Packet&& result, NodePointer<BoundaryInput> inputs,
                              const WatchedArguments& arguments, const ForwardRequest& request,
                              const ExecutionIdentity& identity, bool changed_settings);
  ErrorResponse not_run(RequestId request, ModuleId module, std::int32_t microbatch,
                        const char* what) const;
  void launch(BackwardTask&& task);
  RecordId record_of(const BackwardTask& task) const;
  bool has_one_number(RecordId record, std::int32_t output) const;
  variable_list run_backward_of(BackwardRequest& request, ExecutionScope& scope,
                                std::optional<WeightWork>& rest);
  void run_rest(WeightWork& rest, ExecutionScope& scope);
  void end_microbatch(int microbatch);
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
  KeptOutputs kept_;
  WaitingRequests waiting_;
  PromisedGradients promised_;
  EarlyRequests early_;
};

}  // namespace smp::server
