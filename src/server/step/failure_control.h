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

/// Fails steps, on this rank and the others. Threads: the rank's.
class FailureControl {
 public:
  explicit FailureControl(ServerCore& core) : core_(core) {}

  /// Called when the running step fails on this rank, wherever it did, to end waits that this layer
  /// does not know. Safe in a poll; must not throw.
  using OnFailure = std::function<void(const std::string& why)>;
  void set_failure_handler(OnFailure handler) { on_failure_ = std::move(handler); }

  /// Fails the running step with `error`, here and on the other ranks; outside of steps logs it.
  /// Safe in a poll.
  void fail_step(std::exception_ptr error);
  /// Fails the running step because it failed on another rank. Safe in a poll.
  void on_step_failed(StepFailed&& message);
  /// Takes the news that step `step`, which has ended on this rank, failed on another. If it ended
  /// well here (as a replayed step may, or one whose outputs another rank could not take), the
  /// running step fails, or the next one. Safe in a poll.
  void on_late_failure(std::int64_t step, StepFailed&& message);
  /// Notes how step `step` ended on this rank. Called once a step.
  void step_ended(std::int64_t step, bool well) noexcept { (well ? good_ : failed_) = step; }
  bool ended_well(std::int64_t step) const noexcept { return step <= good_ && step > failed_; }
  /// Fails the step that has just begun if on_late_failure() has taken the failure of an earlier
  /// one.
  void fail_late();
  /// Takes the news that `peer` has left the job after `after_step` steps. Fails the running step
  /// if the peer did not begin it. Safe in a poll.
  void on_rank_left(PpRank peer, std::int64_t after_step);

  /// Checks that the next step can start. @throws PeerLostError  some rank has left.
  void require_all_ranks() const;

  /// Called by routed calls. While the step fails, throws StepAborted, or returns true if the stack
  /// is being unwound and the call is to give an empty value. Returns false if the step has not
  /// failed.
  bool empty_because_unwinding();
  /// Returns true if the stack is being unwound, so that an error is to be swallowed and an empty
  /// value given; counts it then.
  bool swallow_while_unwinding();
  /// Unwinds the running fiber by StepAborted. A fiber that catches it more than 100 times is
  /// suspended for good and named in the log.
  [[noreturn]] void throw_aborted();

 private:
  void let_one_rank_say(const Failure& failure, const std::string& own_text);
  std::string about_unset_members(const Failure& failure) const;
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
