// server/module_server.cpp: life of the server, its messages, and the failure of a step.
#include "server/module_server.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "server/exception_text.h"
#include "server/uncaught.h"

namespace smp::server {
namespace {

/// An exception nobody catches, in main() or in a module. The latter happens when a fiber that is
/// parked in a noexcept frame or a destructor must unwind because its step failed elsewhere.
[[noreturn]] void explain_and_end() {
  const auto error = std::current_exception();
  const auto text = error ? text_of(error) : std::string("std::terminate was called");
  const auto* fiber = base::current_fiber();
  if (fiber == nullptr || fiber->rank == nullptr || fiber->execution == nullptr) {
    std::fprintf(stderr, "smp: uncaught: %s\n", text.c_str());
  } else {
    char who[256] = "";
    fiber->rank->describe(fiber->execution, who, sizeof who);
    std::fprintf(stderr,
                 "smp: %s: an exception could not leave a noexcept function or a destructor, so "
                 "the process ends; call no module from there (the exception: %s)\n",
                 who, text.c_str());
  }
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace

void explain_uncaught_exceptions() noexcept { std::set_terminate(explain_and_end); }

ModuleServer::ModuleServer(d2d::Transport& transport, const ServerOptions& options)
    : transport_(transport),
      options_(options),
      scheduler_(base::FiberScheduler::install()),
      foreign_(transport.rank()),
      accumulator_([this](const at::Tensor& parameter) { foreign_.refuse_gradient(parameter); }),
      collectives_(transport.rank(),
                   [this](int peer, Message&& message) { send(peer, std::move(message)); }),
      workers_(*this, options.fiber_stack_bytes,
               [this] {
                 if (end_is_due_) wake_.signal();
               }),
      stall_watch_(
          steady_, {options.stall_seconds, options.abort_seconds},
          [this](double seconds) { silence(seconds, false); },
          [this](double seconds) { silence(seconds, true); }) {
  explain_uncaught_exceptions();
  transport_.set_receiver(
      [this](int source, d2d::Frame&& frame) { receive(source, std::move(frame)); });
  transport_.set_failure_handler(
      [this](const std::string& what) { fail_step(std::make_exception_ptr(UsageError(what))); });
  poll_ = scheduler_.add_poll([this] {
    const bool progress = transport_.poll();
    stall_watch_.poll(scheduler_.any_waiting(), progress);
    return progress;
  });
}

ModuleServer::~ModuleServer() {
  poll_.reset();
  transport_.set_receiver([](int, d2d::Frame&&) {});
}

void ModuleServer::attach(std::vector<RoutedBase*> modules) {
  modules_ = std::move(modules);
  normalises_.clear();
  for (auto* module : modules_) {
    normalises_.push_back(module != nullptr && module::is_normalisation(module->smp_module()));
  }
}

void ModuleServer::detach(const std::vector<RoutedBase*>& modules) noexcept {
  RoutedBase* const nobody = nullptr;
  for (auto* gone : modules) {  // by address: the module itself may have ended
    std::replace(modules_.begin(), modules_.end(), gone, nobody);
  }
}

// ---- messages ---------------------------------------------------------------------------------

void ModuleServer::receive(int source, d2d::Frame&& frame) noexcept {
  receiving_ = true;
  try {
    sort_by_step(source, decode(std::move(frame)));
  } catch (...) {
    fail_step(std::current_exception());
  }
  receiving_ = false;
}

/// A rank may be a step ahead; nobody reads past the end of his own step.
void ModuleServer::sort_by_step(int source, Message&& message) {
  if (message.kind == Kind::kCollective) {
    collectives_.deliver(source, std::move(message));
  } else if (message.kind == Kind::kLeaving) {
    peer_left(source, message);
  } else if (message.step > step_) {
    early_.push_back({source, std::move(message)});
  } else if (running_ && message.step == step_) {
    dispatch(source, std::move(message));
  }
}

void ModuleServer::dispatch(int source, Message&& message) {
  switch (message.kind) {
    case Kind::kForward:
      return execute_forward(source, std::move(message));
    case Kind::kBackward:
      return execute_backward(source, std::move(message));
    case Kind::kResponse:
      return pending_.complete(std::move(message));
    case Kind::kRelease:
      released_.push_back(message.record);
      break;
    case Kind::kForwardDone:
      accumulator_.mark_forward_done(message.microbatch);
      break;
    case Kind::kMicrobatchDone:
      accumulator_.mark_microbatch_done(message.microbatch);
      break;
    case Kind::kFinish:
      finish_asked_ = true;
      ++finished_ranks_;
      break;
    case Kind::kStop:
      stop_ = std::move(message);
      break;
    case Kind::kAbort:
      if (!failure_) {
        failure_ =
            std::make_exception_ptr(RemoteError(message.failure->text, message.failure->rank));
      }
      return abort_locally();
    case Kind::kCollective:
    case Kind::kLeaving:
      return;  // handled before
  }
  wake_.signal();
}

void ModuleServer::send(int peer, Message&& message) {
  if (message.kind != Kind::kCollective) message.step = step_;
  transport_.send(peer, encode(std::move(message)));
}

void ModuleServer::tell_others(Message&& message) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) send(peer, Message(message));
  }
}

Message ModuleServer::about_microbatch(Kind kind, int microbatch) const {
  Message message;
  message.kind = kind;
  message.microbatch = microbatch;
  return message;
}

// ---- failure ----------------------------------------------------------------------------------

void ModuleServer::fail_step(std::exception_ptr error) {
  if (!running_) {
    base::log(base::LogLevel::kError, "rank ", rank(), ": outside of a step: ", text_of(error));
    return;
  }
  if (aborting_) return;
  if (!failure_) failure_ = std::move(error);
  Message message;
  message.kind = Kind::kAbort;
  char who[256] = "";
  const auto* fiber = base::current_fiber();
  describe(fiber == nullptr || fiber->rank != this ? nullptr : fiber->execution, who, sizeof who);
  message.failure = failure_of(failure_, rank(), who);
  tell_others(std::move(message));
  abort_locally();
}

void ModuleServer::abort_locally() noexcept {
  aborting_ = true;
  pending_.abort_all();
  for (auto* event : gate_) event->signal();
  wake_.signal();
}

void ModuleServer::peer_left(int peer, const Message& farewell) {
  const auto after_step = farewell.step;
  if (left_.empty() || after_step < left_after_) {
    left_ = base::concat("rank ", peer, " left after step ", after_step);
    left_after_ = after_step;
  }
  collectives_.peer_left(peer, farewell.request, base::concat("it left after step ", after_step));
  if (!running_ || after_step >= step_) return;
  fail_step(std::make_exception_ptr(PeerLostError(base::concat(
      "rank ", rank(), ": step ", step_, " cannot end: ", left_,
      "; every rank must run the same number of steps (see that rank's own message)"))));
}

void ModuleServer::leave_job() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Message message;
    message.kind = Kind::kLeaving;
    message.request = collectives_.sent_to(peer);
    send(peer, std::move(message));
  }
}

void ModuleServer::silence(double seconds, bool final) {
  std::string report = base::concat("rank ", rank(), ": nothing happened for ",
                                    static_cast<int>(seconds), " s in step ", step_, ":");
  for (const auto& line : scheduler_.waiting_report()) report += "\n    " + line;
  if (!final) {
    base::log(base::LogLevel::kWarning, report,
              "\n    (stall_seconds reports, abort_seconds ends the job)");
    return;
  }
  abandon(report);
}

void ModuleServer::abandon(const std::string& why) {
  collectives_.abort(why);
  if (running_) fail_step(std::make_exception_ptr(PeerLostError(why)));
}

// ---- what a fiber does ------------------------------------------------------------------------

void ModuleServer::on_switch(void* execution, bool running) noexcept {
  if (!recorder_.enabled()) return;
  if (!running) {
    recorder_.end();
    return;
  }
  const auto& own = *static_cast<const Execution*>(execution);
  const bool forward = own.phase == schedule::Phase::kForward;
  recorder_.begin(own.microbatch, own.module,
                  forward ? base::Phase::kForward : base::Phase::kBackward);
}

void ModuleServer::describe(const void* execution, char* text, std::size_t size) const noexcept {
  if (execution == nullptr) {
    std::snprintf(text, size, "rank %d", rank());
    return;
  }
  const auto& own = *static_cast<const Execution*>(execution);
  std::snprintf(text, size, "rank %d, module %s (%s), microbatch %d", rank(), own.path,
                own.phase == schedule::Phase::kForward ? "forward" : "backward", own.microbatch);
}

int ModuleServer::current_microbatch() const noexcept {
  const auto* fiber = base::current_fiber();
  if (fiber == nullptr || fiber->rank != this || fiber->execution == nullptr) return -1;
  return static_cast<const Execution*>(fiber->execution)->microbatch;
}

base::StepTrace ModuleServer::take_trace() { return std::exchange(trace_, {}); }

}  // namespace smp::server
