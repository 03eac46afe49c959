// server/engine/stall_control.h: how the waits of a rank end when nothing happens any more
// (docs/design.md, Waits without an end).
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "server/ends/stall_report.h"
#include "server/ends/stall_watch.h"
#include "server/engine/step_run.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Watches one rank for stalls, has them reported, and ends all waits at the last. Threads: the
/// rank's; nothing here suspends, all is safe in a poll.
class StallControl {
 public:
  /// Called with the reason when all waits of this rank are to end.
  using OnAbort = std::function<void(const std::string& why)>;

  /// All but `on_abort` must outlive this object.
  StallControl(ServerCore& core, FailureControl& failures, StepRun& engine, d2d::Channel& channel,
               OnAbort on_abort);
  StallControl(const StallControl&) = delete;
  StallControl& operator=(const StallControl&) = delete;

  /// What is said about stalls, to which other ranks' questions and answers go.
  StallReport& report() noexcept { return report_; }
  /// Called in every poll. @param waiting  some fiber waits; @param worked  a task has started, or
  /// a message that is not about stalls has come; @param moved  any message has moved
  void poll(bool waiting, bool worked, bool moved);

  /// Ends every wait of this rank: in a step, the step fails; outside, waits throw PeerLostError
  /// with `why`.
  void abandon(const std::string& why);
  /// Fails the running step with `error`. If the channel has failed, or no step runs, all waits end
  /// by it instead, since nothing that anybody waits for comes any more.
  void fail(std::exception_ptr error);

 private:
  void ask_others(void (StallReport::*how)(double), double seconds) noexcept;
  bool end_stall(double seconds);
  void leave_to_accuser(const std::string& text) const;
  void abandon(std::exception_ptr error);

  ServerCore& core_;
  FailureControl& failures_;
  OnAbort on_abort_;
  StallReport report_{core_.port, core_.scopes.modules, core_.clock, core_.waiting};
  StallWatch watch_;
};

}  // namespace smp::server
