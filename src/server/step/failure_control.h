// server/step/failure_control.h: how a step fails on every rank, how its fibers unwind, and what is
// said about it (docs/design.md, Failure).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "server/protocol/message.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Threads: the rank's.
class FailureControl {
 public:
  explicit FailureControl(ServerCore& core) : core_(core) {}

  /// Called when step `step` fails on this rank, wherever it did, to end waits that this layer does
  /// not know. Safe in a poll; must not throw.
  using OnFailure = std::function<void(std::int64_t step, const std::string& why)>;
  void set_failure_handler(OnFailure handler) { on_failure_ = std::move(handler); }

  /// Ends the running step with `error`, here and on the other ranks. Outside of steps it is
  /// logged. Safe in a poll.
  void fail_step(std::exception_ptr error);
  /// Another rank's step failed. Safe in a poll.
  void on_step_failed(StepFailed&& message);
  /// Of step `step`, which this rank has ended. If it ended well here, as a replayed one may, or
  /// one whose outputs another rank could not take, the running step fails, or the next one. Safe
  /// in a poll.
  void on_late_failure(std::int64_t step, StepFailed&& message);
  /// Once a step.
  void step_ended(std::int64_t step, bool well) noexcept { (well ? good_ : failed_) = step; }
  bool ended_well(std::int64_t step) const noexcept { return step <= good_ && step > failed_; }
  /// The step that has just begun fails if one before it did, too late.
  void fail_late();
  /// `peer` takes part in nothing any more, after `after_step` steps. Fails the running step if the
  /// peer did not begin it. Safe in a poll.
  void on_rank_left(PpRank peer, std::int64_t after_step);

  /// @throws PeerLostError  some rank left, so that the next step cannot start.
  void require_all_ranks() const;

  /// A routed call while the step fails: throws StepAborted, or says true if the stack is being
  /// unwound and the call is to give an empty value. False if the step is fine.
  bool empty_because_unwinding();
  /// As empty_because_unwinding(), for an answer that is an error.
  bool swallow_while_unwinding();
  /// Unwinds the running fiber. One that catches it again and again is given up and named.
  [[noreturn]] void throw_aborted();

 private:
  void let_one_rank_say(const Failure& failure, const std::string& own_text);
  void tell_others(const Failure& failure) noexcept;
  void abort_here(const std::string& why) noexcept;
  GlobalRank first_but(PpRank peer) const;

  ServerCore& core_;
  OnFailure on_failure_;
  std::string left_;  // which rank left first, and when
  std::int64_t left_after_ = 0;
  PpRank left_peer_{0};
  std::int64_t good_ = 0, failed_ = 0;  // the last steps that ended so
  std::optional<Failure> late_;         // of an earlier step
};

}  // namespace smp::server
