// server/engine/module_server.cpp: messages find their part; waits find their end.
#include "server/engine/module_server.h"

#include <cstdio>
#include <utility>

#include "alive/common_errors.h"
#include "alive/pulse.h"
#include "alive/watchdog.h"
#include "base/check.h"
#include "base/log.h"
#include "module/call_handler.h"
#include "server/ends/last_words.h"
#include "server/ends/silent_rank.h"
#include "server/protocol/exception_text.h"

namespace smp::server {

class ModuleServer::Idle final : public fiber::Activity {
 public:
  explicit Idle(GlobalRank rank)
      : rank_(rank), outer_(std::exchange(fiber::current_fiber()->activity, this)) {}
  ~Idle() {
    if (auto* fiber = fiber::current_fiber()) fiber->activity = outer_;
  }
  void on_switch(bool) noexcept override {}
  void describe(char* text, std::size_t size) const noexcept override {
    std::snprintf(text, size, "rank %d", rank_.value());
  }

 private:
  GlobalRank rank_;
  fiber::Activity* outer_;
};

ModuleServer::ModuleServer(d2d::Channel& channel, std::vector<GlobalRank> stages,
                           const ServerOptions& options,
                           std::function<void(const std::string& why)> on_abort)
    : core_(channel, std::move(stages), options,
            [this](WorkerTask&& task) { run_task(std::move(task)); }),
      on_abort_(std::move(on_abort)),
      stall_watch_(core_.clock, {options.stall_seconds, options.abort_seconds},
                   {[this](double seconds) { ask_others(&StallReport::ask, seconds); },
                    [this](double seconds) { ask_others(&StallReport::refresh, seconds); },
                    [this](double seconds) { return end_stall(seconds); },
                    [this, &channel] {
                      channel.check_links();
                      tell_what_is_withheld();
                    }}),
      idle_(std::make_unique<Idle>(core_.port.name())) {
  core_.scopes.recorder.shares_cores(options.oversubscribed);
  explain_uncaught_exceptions();
  explain_faults();
  explain_exit_in_modules();
  module::call_handler().set(&router_);
  core_.workers.inherit_fiber_locals();
  core_.port.open([this](PpRank source, std::int64_t step,
                         Message&& message) { receive(source, step, std::move(message)); },
                  [this](std::exception_ptr error) { fail(std::move(error)); });
  auto& scheduler = fiber::Scheduler::instance();
  poll_ = scheduler.add_poll([this, &scheduler, &channel, work = std::uint64_t{0}]() mutable {
    const bool moved = channel.poll();
    const bool worked = std::exchange(work, core_.workers.launched() + received_) != work;
    // Questions about a stall and their answers do not end it.
    stall_watch_.poll(scheduler.any_waiting(), worked || (moved && !stall_report_.talking()));
    stall_report_.poll();
    return moved;
  });
}

ModuleServer::~ModuleServer() {
  poll_.reset();
  core_.port.close();
  module::call_handler().set(nullptr);
}

schedule::StepTrace ModuleServer::run_step(const StepTask& task) {
  SMP_REQUIRE(!in_step(), "rank ", core_.port.name(), ": a step was started inside a step");
  failures_.require_all_ranks();
  core_.port.require_open();
  engine_.begin(task);
  core_.scopes.recorder.begin_step(core_.step->number, core_.step->start);
  failures_.fail_late();
  schedule::StepTrace trace{rank().value(),
                            core_.step->number,
                            core_.step->start,
                            0,
                            core_.options.oversubscribed,
                            {},
                            {}};
  for (auto early = std::exchange(early_, {}); auto& [source, step, message] : early) {
    try {
      receive(source, step, std::move(message));
    } catch (...) {
      failures_.fail_step(std::current_exception());
    }
  }
  engine_.run();
  trace.end = core_.clock.now();
  core_.scopes.recorder.end_step(trace);
  return trace;
}

// ---- messages ----------------------------------------------------------------------------------

/// Hands a message on by its step. A rank may be a step ahead, so messages of a later step are kept
/// until this rank begins it.
void ModuleServer::receive(PpRank source, std::int64_t step, Message&& message) {
  if (std::holds_alternative<StallQuestion>(message)) return stall_report_.on_question(source);
  if (auto* answer = std::get_if<StallAnswer>(&message)) {
    return stall_report_.on_answer(source, std::move(*answer));
  }
  ++received_;
  if (std::holds_alternative<RankLeft>(message)) {
    failures_.on_rank_left(source, step);
  } else if (step > core_.port.step()) {
    early_.push_back({source, step, std::move(message)});
  } else if (in_step() && step == core_.step->number) {
    dispatch(source, std::move(message));
  } else if (auto* failed = std::get_if<StepFailed>(&message)) {
    failures_.on_late_failure(step, std::move(*failed));
  } else if (const auto* finished = std::get_if<FinishGradients>(&message)) {
    // Of a step that failed here it does not matter.
    if (core_.port.is_first() && failures_.ended_well(step)) {
      engine_.on_late_message(source, *finished);
    }
  }
}

void ModuleServer::dispatch(PpRank source, Message&& message) {
  struct Dispatch {
    ModuleServer& self;
    PpRank source;
    void operator()(ForwardRequest&& m) { self.runner_.on_message(source, std::move(m)); }
    void operator()(BackwardRequest&& m) { self.runner_.on_message(source, std::move(m)); }
    void operator()(PassOn&& m) { self.runner_.on_message(source, m); }
    void operator()(PassedOn&& m) {
      if (m.caller == self.core_.port.rank()) return self.router_.on_message(std::move(m));
      self.runner_.on_message(std::move(m));
    }
    void operator()(ReleaseOutputs&& m) { self.runner_.on_message(source, m); }
    void operator()(ReleaseRecord&& m) { self.runner_.on_message(std::move(m)); }
    void operator()(ForwardResponse&& m) { self.router_.on_message(std::move(m)); }
    void operator()(BackwardResponse&& m) { self.router_.on_message(std::move(m)); }
    void operator()(ErrorResponse&& m) { self.router_.on_message(std::move(m)); }
    void operator()(ForwardDone&& m) { self.engine_.on_message(m); }
    void operator()(MicrobatchDone&& m) { self.engine_.on_message(m); }
    void operator()(FinishGradients&& m) { self.engine_.on_message(source, m); }
    void operator()(StepEnded&& m) { self.engine_.on_message(std::move(m)); }
    void operator()(StepFailed&& m) { self.failures_.on_step_failed(std::move(m)); }
    void operator()(RankLeft&&) {}  // these are of no step
    void operator()(StallQuestion&&) {}
    void operator()(StallAnswer&&) {}
  };
  std::visit(Dispatch{*this, source}, std::move(message));
}

void ModuleServer::run_task(WorkerTask&& task) {
  struct Run {
    ModuleServer& self;
    void operator()(BodyTask&& t) { self.engine_.run(t); }
    void operator()(ForwardTask&& t) { self.runner_.run(std::move(t)); }
    void operator()(BackwardTask&& t) { self.runner_.run(std::move(t)); }
  };
  try {
    std::visit(Run{*this}, std::move(task));
  } catch (const StepAborted&) {
    throw;
  } catch (...) {  // not even an error could be sent
    failures_.fail_step(std::current_exception());
  }
}

void ModuleServer::leave_job() { core_.port.send_to_others(RankLeft{}); }

// ---- waits without an end ----------------------------------------------------------------------

/// Ends all waits of this rank after a stall of `seconds`; returns false to be asked again later.
/// The rank that reports the stall ends its waits first, so that all ranks fail with its text, and
/// it alone prints that.
bool ModuleServer::end_stall(double seconds) {
  constexpr double kPrecedence = 2;
  const auto reporter = stall_report_.reporter(seconds);
  if (reporter && seconds < core_.options.abort_seconds + kPrecedence) return false;
  // A rank that was stopped itself hears first what the others have to say.
  if (stall_report_.talking()) return false;
  Watchdog::end_soon();
  const auto text = stall_report_.text(seconds);
  if (reporter && !in_step()) leave_to_another_rank(text, core_.port.name(*reporter));
  leave_to_accuser(text);
  abandon(text);
  return true;
}

/// Leaves the printing to the rank that accuses a stopped rank. Such a rank holds up every pipeline
/// of the job, and each finds it by itself.
void ModuleServer::leave_to_accuser(const std::string& text) const {
  for (const auto& stopped : stopped_ranks(core_.scopes.modules, core_.clock.now())) {
    leave_to_another_rank(text, GlobalRank(base::accuser_of(stopped.rank.value())));
    return;
  }
}

/// In a poll, where nobody takes what is thrown: that a rank cannot be asked is what is wrong.
void ModuleServer::ask_others(void (StallReport::*how)(double), double seconds) noexcept try {
  (stall_report_.*how)(seconds);
} catch (...) {
  abandon(std::current_exception());
}

void ModuleServer::abandon(const std::string& why) {
  abandon(std::make_exception_ptr(PeerLostError(why)));
}

void ModuleServer::abandon(std::exception_ptr error) {
  on_abort_(text_of(error));
  if (in_step()) failures_.fail_step(std::move(error));
}

/// Fails the running step with `error`. If the channel has failed, or no step runs, all waits end
/// by it instead, since nothing that anybody waits for comes any more.
void ModuleServer::fail(std::exception_ptr error) {
  const bool failed = core_.port.has_failed();
  if (!failed) failures_.fail_step(error);
  if (failed || !in_step()) abandon(std::move(error));
}

}  // namespace smp::server
