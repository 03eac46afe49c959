// server/calls/call_router.h: calls of routed modules made on this rank: those that run here, and
// those that leave (paper §4.1).
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>

#include "server/calls/state_check.h"
#include "server/promises/expected_results.h"
#include "server/replay/recorded_flow.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"
#include "smp/detail/call.h"

namespace smp::server {

class OutputUse;
using OutputUses = c10::SmallVector<OutputUse, 2>;

/// The CallHandler during a step: brackets calls of modules of this rank, and sends other calls to
/// their owners. Threads: the rank's.
class CallRouter final : public CallHandler {
 public:
  CallRouter(ServerCore& core, FailureControl& failures, StateCheck& states)
      : core_(core), failures_(failures), states_(states) {}

  // CallHandler
  Where where(const RoutedBase& module) override;
  bool in_step() const noexcept override;
  bool joins(const RoutedBase& first, const RoutedBase& next) override;
  void enter(RoutedBase& module, Space& space) override;
  void leave(Space& space) noexcept override;
  std::optional<Packet> call(RoutedBase& module, const CallEntry& entry, PpRank owner,
                             Packet&& arguments, const CallTraits& traits) override;

  /// Sends the backward request of a remote call to `owner`. Its id must be in the step's table of
  /// requests already.
  void request_backward(PpRank owner, BackwardRequest&& request);
  /// Notes that another rank keeps a record of a call that this rank has made.
  void note_record(std::int64_t step, int microbatch) noexcept;
  /// Notes that `owner` has not run a backward that it was asked for, and keeps the record.
  void backward_not_begun(PpRank owner, std::int64_t step, int microbatch) noexcept;
  /// Tells `owner` that its record, made in step `step`, will not be used any more; does nothing if
  /// that step is over. Called by destructors of graphs, in polls too.
  void release(PpRank owner, std::int64_t step, int microbatch, RecordId record);
  /// Notes that the outputs of a promised call will not be asked for any more; `owner` is told
  /// later. Does nothing if step `step` is over.
  void release_outputs(PpRank owner, std::int64_t step, RequestId request) noexcept;
  /// Sends what release() put off because a message was being received.
  void flush_releases();
  /// Ends the step: outputs whose release was not sent yet are freed by their owners without it.
  void end_step();

  /// Takes the answer of another rank. An answer that nobody waits for, because its call has
  /// failed, is dropped.
  void on_message(ForwardResponse&& response);
  void on_message(BackwardResponse&& response);
  void on_message(ErrorResponse&& response);
  /// Takes the values of an output that this rank has asked for.
  void on_message(PassedOn&& message);

 private:
  friend class RemoteCall;
  friend class PromisedCall;

  void note_work(const ExecutionScope& scope) const noexcept;
  ForwardRequest forward_request(RoutedBase& module, const CallEntry& entry, Packet&& arguments,
                                 std::uint32_t calls) const;
  bool may_promise(const CallTraits& traits) const;
  bool may_pass_on() const;
  RecordedFlow::Call* follow_record(const ForwardRequest& request, std::uint64_t kind);
  void tell_departure(const ForwardRequest& request);
  std::optional<ForwardResponse> await_result(ForwardRequest& request, PpRank owner);
  Packet promise(ForwardRequest&& request, PpRank owner, ExpectedResult& expected,
                 at::ArrayRef<at::Tensor> own, OutputUses&& uses, RecordedFlow::Call* recorded);
  std::vector<RequestId> take_releases(PpRank owner);
  void send(PpRank owner, ForwardRequest& request, bool in_row);
  void note_answer(RequestId request);
  Settings take_settings(RoutedBase& module, const Settings& changed);
  void attach_history(ForwardResponse& response, PpRank owner, const ForwardRequest& request,
                      at::ArrayRef<at::Tensor> arguments);

  struct Release {
    PpRank owner;
    RecordId record;
  };
  ServerCore& core_;
  FailureControl& failures_;
  StateCheck& states_;
  std::vector<Release> to_release_;                         // not sent yet
  std::vector<std::vector<RequestId>> outputs_to_release_;  // by owner, not sent yet
  ExpectedResults expected_;
  RecordedFlow flow_;
  int departures_told_ = 0;
  std::shared_ptr<CallRouter> self_{this, [](CallRouter*) {}};  // for graphs that may outlive it
};

}  // namespace smp::server
