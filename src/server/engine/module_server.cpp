// server/engine/module_server.cpp: messages find their part.
#include "server/engine/module_server.h"

#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "module/call_handler.h"
#include "server/ends/last_words.h"
#include "server/running/saved_tensors.h"

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
                           const ServerOptions& options, StallControl::OnAbort on_abort)
    : core_(channel, std::move(stages), options,
            [this](WorkerTask&& task) { run_task(std::move(task)); }),
      stalls_(core_, failures_, engine_, channel, std::move(on_abort)),
      idle_(std::make_unique<Idle>(core_.port.name())) {
  core_.scopes.recorder.shares_cores(options.oversubscribed);
  explain_uncaught_exceptions();
  explain_faults();
  explain_exit_in_modules();
  hook_saved_tensors();
  module::call_handler().set(&router_);
  core_.workers.inherit_fiber_locals();
  core_.port.open([this](PpRank source, std::int64_t step,
                         Message&& message) { receive(source, step, std::move(message)); },
                  [this](std::exception_ptr error) { stalls_.fail(std::move(error)); });
  auto& scheduler = fiber::Scheduler::instance();
  poll_ = scheduler.add_poll([this, &scheduler, &channel, work = std::uint64_t{0}]() mutable {
    const bool moved = channel.poll();
    const bool worked = std::exchange(work, core_.workers.launched() + received_) != work;
    stalls_.poll(scheduler.any_waiting(), worked, moved);
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
  if (std::holds_alternative<StallQuestion>(message)) return stalls_.report().on_question(source);
  if (auto* answer = std::get_if<StallAnswer>(&message)) {
    return stalls_.report().on_answer(source, std::move(*answer));
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

void ModuleServer::abandon(const std::string& why) { stalls_.abandon(why); }

}  // namespace smp::server
