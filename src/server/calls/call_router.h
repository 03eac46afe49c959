// server/calls/call_router.h: calls of routed modules made on this rank: those that run here, and
// those that leave (paper §4.1).
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "server/calls/outgoing_call.h"
#include "server/calls/promised_outputs.h"
#include "server/calls/state_check.h"
#include "server/promises/expected_results.h"
#include "server/replay/recorded_flow.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"
#include "smp/detail/call.h"

namespace smp::server {

/// Threads: the rank's.
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

  /// Answers of other ranks, and values that this rank asked for.
  template <class Message>
  void on_message(Message&& message) {
    line_->on_message(std::forward<Message>(message));
  }
  void flush_releases() { line_->flush_releases(); }
  void end_step() { line_->end_step(); }

 private:
  void note_work(const ExecutionScope& scope) const noexcept;
  ForwardRequest forward_request(RoutedBase& module, const CallEntry& entry, Packet&& arguments,
                                 std::uint32_t calls) const;
  bool may_promise(const CallTraits& traits) const;
  RecordedFlow::Call* follow_record(const ForwardRequest& request, std::uint64_t kind);
  void tell_departure(const ForwardRequest& request);
  std::optional<ForwardResponse> await_result(OutgoingCall& call, CallAnswer& answer,
                                              ForwardRequest& request);
  std::optional<ForwardResponse> await_and_keep(OutgoingCall& call, CallAnswer& answer,
                                                ForwardRequest& request);
  void refuse_changes_that_are_kept(const RoutedBase& module, const ForwardResponse& response,
                                    std::size_t arguments) const;
  Packet promise(ForwardRequest&& request, PpRank owner, ExpectedResult& expected,
                 at::ArrayRef<at::Tensor> own, OutputUses&& uses, RecordedFlow::Call* recorded);
  void send(PpRank owner, ForwardRequest& request, bool in_row);
  void attach_history(ForwardResponse& response, std::shared_ptr<OutgoingCall> call,
                      at::ArrayRef<at::Tensor> arguments);

  ServerCore& core_;
  FailureControl& failures_;
  StateCheck& states_;
  ExpectedResults expected_;
  RecordedFlow flow_;
  int departures_told_ = 0;
  // Last: calls know by it whether what they expected is there.
  const std::shared_ptr<CallLine> line_ = std::make_shared<CallLine>(core_, failures_);
};

}  // namespace smp::server
