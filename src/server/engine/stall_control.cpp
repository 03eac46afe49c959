// server/engine/stall_control.cpp: of several ranks one speaks, and all end.
#include "server/engine/stall_control.h"

#include <utility>

#include "alive/common_errors.h"
#include "alive/pulse.h"
#include "alive/watchdog.h"
#include "server/ends/silent_rank.h"
#include "server/protocol/exception_text.h"
#include "smp/error.h"

namespace smp::server {

StallControl::StallControl(ServerCore& core, FailureControl& failures, StepRun& engine,
                           d2d::Channel& channel, OnAbort on_abort)
    : core_(core),
      failures_(failures),
      on_abort_(std::move(on_abort)),
      watch_(core.clock, {core.options.stall_seconds, core.options.abort_seconds},
             {[this](double seconds) { ask_others(&StallReport::ask, seconds); },
              [this](double seconds) { ask_others(&StallReport::refresh, seconds); },
              [this](double seconds) { return end_stall(seconds); },
              [&engine, &channel] {
                channel.check_links();
                engine.tell_withheld();
              }}) {}

void StallControl::poll(bool waiting, bool worked, bool moved) {
  // Questions about a stall and their answers do not end it.
  watch_.poll(waiting, worked || (moved && !report_.talking()));
  report_.poll();
}

/// Ends all waits of this rank after a stall of `seconds`; returns false to be asked again later.
/// The rank that reports the stall ends its waits first, so that all ranks fail with its text, and
/// it alone prints that.
bool StallControl::end_stall(double seconds) {
  constexpr double kPrecedence = 2;
  const auto reporter = report_.reporter(seconds);
  if (reporter && seconds < core_.options.abort_seconds + kPrecedence) return false;
  // A rank that was stopped itself hears first what the others have to say.
  if (report_.talking()) return false;
  Watchdog::end_soon();
  const auto text = report_.text(seconds);
  if (reporter && core_.step == nullptr) leave_to_another_rank(text, core_.port.name(*reporter));
  leave_to_accuser(text);
  abandon(text);
  return true;
}

/// Leaves the printing to the rank that accuses a stopped rank. Such a rank holds up every pipeline
/// of the job, and each finds it by itself.
void StallControl::leave_to_accuser(const std::string& text) const {
  for (const auto& stopped : stopped_ranks(core_.scopes.modules, core_.clock.now())) {
    leave_to_another_rank(text, GlobalRank(base::accuser_of(stopped.rank.value())));
    return;
  }
}

/// In a poll, where nobody takes what is thrown: that a rank cannot be asked is what is wrong.
void StallControl::ask_others(void (StallReport::*how)(double), double seconds) noexcept try {
  (report_.*how)(seconds);
} catch (...) {
  abandon(std::current_exception());
}

void StallControl::abandon(const std::string& why) {
  abandon(std::make_exception_ptr(PeerLostError(why)));
}

void StallControl::abandon(std::exception_ptr error) {
  on_abort_(text_of(error));
  if (core_.step != nullptr) failures_.fail_step(std::move(error));
}

void StallControl::fail(std::exception_ptr error) {
  const bool failed = core_.port.has_failed();
  if (!failed) failures_.fail_step(error);
  if (failed || core_.step == nullptr) abandon(std::move(error));
}

}  // namespace smp::server
