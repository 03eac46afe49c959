// server/calls/call_line.h: what calls that left say to their owners, and what these say to them
// (paper App. B).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "server/protocol/message.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

class OutgoingCall;

/// As long as the session; calls may outlive it. Threads: the rank's.
class CallLine {
 public:
  CallLine(ServerCore& core, FailureControl& failures) : core_(core), failures_(failures) {}
  CallLine(const CallLine&) = delete;
  CallLine& operator=(const CallLine&) = delete;

  ServerCore& core() const noexcept { return core_; }
  FailureControl& failures() const noexcept { return failures_; }
  /// The step that runs; nullptr: it is not `number`.
  StepState* step(std::int64_t number) const noexcept;
  /// As step(), of one that has not failed.
  StepState* good_step(std::int64_t number) const noexcept;

  /// Not where order within a microbatch may matter beyond what requests say: with modules that
  /// keep state, and in steps that run one microbatch at a time.
  bool may_pass_on() const;
  /// What the execution switched, as its caller sees it from now on.
  Settings take_settings(RoutedBase& module, const Settings& changed);
  /// What was frozen since the forward gets no gradient, as in one process.
  std::optional<Settings> changed_settings(ModuleId module, const Settings& since) const;

  /// The backward of a remote call begins. Whoever made the request has its name in the step's
  /// table.
  void request_backward(PpRank owner, BackwardRequest&& request);
  /// Another rank keeps a record, of a call of this one.
  void note_record(std::int64_t step, int microbatch) noexcept;
  /// The owner has not run it, and keeps its record.
  void backward_not_begun(PpRank owner, std::int64_t step, int microbatch) noexcept;
  /// Keeps a call whose graph is gone until its backward is answered, or the step ends.
  /// @return whether it does: not where its step has ended or failed
  [[nodiscard]] bool adopt(std::shared_ptr<OutgoingCall> call);
  /// @return the call, which is not kept any more
  std::shared_ptr<OutgoingCall> give_up(const OutgoingCall& call) noexcept;
  /// A record of `owner`, made in step `step`, will not be used any more; of a step that is over
  /// nothing needs to be said. Called by destructors of graphs, in polls too.
  void release(PpRank owner, std::int64_t step, int microbatch, RecordId record);
  /// The outputs of a promised call will not be asked for any more; else as release().
  void release_outputs(PpRank owner, std::int64_t step, RequestId request) noexcept;
  /// Those that travel with the next request to `owner`.
  std::vector<RequestId> take_releases(PpRank owner);
  /// Sends what release() put off because a message was being received.
  void flush_releases();
  /// What was not said about the step's outputs need not be said.
  void end_step();

  /// Answers of other ranks; those nobody waits for, of an earlier failed call, are dropped.
  void on_message(ForwardResponse&& response);
  void on_message(BackwardResponse&& response);
  void on_message(ErrorResponse&& response);
  /// Values that this rank asked for.
  void on_message(PassedOn&& message);

 private:
  struct Release {
    PpRank owner;
    RecordId record;
  };

  std::optional<ResponseTarget*> take_target(RequestId request);

  ServerCore& core_;
  FailureControl& failures_;
  std::vector<std::shared_ptr<OutgoingCall>> adopted_;
  std::vector<Release> to_release_;                         // not sent yet
  std::vector<std::vector<RequestId>> outputs_to_release_;  // by owner, not sent yet
};

}  // namespace smp::server
