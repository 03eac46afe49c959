// server/step.cpp: ModuleServer's step: from the first microbatch to the outputs (paper §4.1,
// §4.3).
#include <torch/csrc/autograd/function.h>

#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "server/module_server.h"
#include "server/output_message.h"

namespace smp::server {
namespace {

/// Counts running steps, so that a routed call on a foreign thread can be refused by name.
struct StepsRunning {
  StepsRunning() { ++module::steps_running(); }
  ~StepsRunning() { --module::steps_running(); }
};

}  // namespace

void ModuleServer::run_step(const StepTask& task) {
  SMP_REQUIRE(!running_, "rank ", rank(), ": a step was started inside a step");
  SMP_REQUIRE_AS(PeerLostError, left_.empty() || step_ < left_after_, "rank ", rank(), ": step ",
                 step_ + 1, " cannot start: ", left_,
                 "; every rank must run the same number of steps");
  const StepsRunning counted;
  begin_step(task);
  check_foreign_parameters();
  for (auto early = std::exchange(early_, {}); auto& [source, message] : early) {
    sort_by_step(source, std::move(message));
  }
  if (rank() == 0) start_microbatches();
  serve_until(&ModuleServer::microbatches_are_done);
  finish_gradients();
  serve_until(&ModuleServer::ranks_are_done);
  end_step();
}

void ModuleServer::begin_step(const StepTask& task) {
  ++step_;
  task_ = task;
  progress_ = {};
  progress_.microbatches = task.microbatches;
  calls_.assign(static_cast<std::size_t>(task.microbatches),
                std::vector<int>(modules_.size() + 1, 0));
  finish_asked_ = false;
  finished_ranks_ = 0;
  stop_.reset();
  aborting_ = false;
  failure_ = nullptr;
  accumulator_.begin(task.microbatches);
  trace_ = {rank(), step_, steady_.now(), 0, options_.oversubscribed, {}};
  running_ = true;
}

/// Within the step, so that the others hear of it.
void ModuleServer::check_foreign_parameters() {
  try {
    foreign_.check_untouched("between two steps");
  } catch (...) {
    fail_step(std::current_exception());
  }
}

/// The user's thread: it keeps house while worker fibers run the modules.
void ModuleServer::serve_until(bool (ModuleServer::*done)() const noexcept) {
  static constexpr base::WaitReason kEndOfStep{"the end of the step", "", -1, -1};
  for (;;) {
    keep_house();
    end_is_due_ = aborting_ || (this->*done)();
    if (end_is_due_ && workers_.busy() == 0) return;
    wake_.wait(kEndOfStep);
  }
}

bool ModuleServer::microbatches_are_done() const noexcept {
  return rank() == 0 ? progress_.finished == progress_.microbatches : finish_asked_;
}

bool ModuleServer::ranks_are_done() const noexcept {
  return rank() == 0 ? finished_ranks_ == size() - 1 : stop_.has_value();
}

/// The last gradients run hooks of the user. No rank's step succeeds before those of all have.
void ModuleServer::finish_gradients() {
  if (aborting_) return;
  try {
    accumulator_.finish();
  } catch (...) {
    return fail_step(std::current_exception());
  }
  Message message;
  message.kind = Kind::kFinish;
  rank() == 0 ? tell_others(std::move(message)) : send(0, std::move(message));
}

/// What a poll may only note down, because it runs LibTorch code or user code.
void ModuleServer::keep_house() {
  for (const auto number : std::exchange(released_, {})) {
    if (const auto record = records_.take(number, false)) {
      accumulator_.mark_closed(record->microbatch, record->index);
    }
  }
  flush_releases();
  if (aborting_) return;
  try {
    accumulator_.settle();
  } catch (...) {
    fail_step(std::current_exception());
  }
}

void ModuleServer::end_step() {
  trace_.end = steady_.now();
  trace_.spans = recorder_.take();
  if (!aborting_) {
    try {
      statistics_.commit();
      rank() == 0 ? send_outputs() : take_outputs(std::move(*stop_));
      counters_.records_left += records_.size();
    } catch (...) {
      fail_step(std::current_exception());
    }
  }
  records_.clear();
  flush_releases();
  running_ = false;
  task_ = {};
  released_.clear();
  if (!aborting_) return;
  accumulator_.drop();
  statistics_.drop();
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

// ---- microbatches, on pp_rank 0 ---------------------------------------------------------------

void ModuleServer::start_microbatches() {
  while (!aborting_ && progress_.started < progress_.microbatches &&
         task_.schedule->may_start(progress_)) {
    const int microbatch = progress_.started++;
    accumulator_.open(microbatch, false);
    workers_.launch([this, microbatch] { run_body(microbatch); },
                    priority(schedule::Phase::kForward, microbatch));
  }
}

void ModuleServer::run_body(int microbatch) {
  Execution execution;
  execution.microbatch = microbatch;
  base::current_fiber()->execution = &execution;
  base::current_fiber()->passing_on = true;  // until it computes
  on_switch(&execution, true);
  try {
    const base::RandomScope random(random_key(microbatch, execution.path, 0));
    task_.body(microbatch);
  } catch (const StepAborted&) {
    // The failure is known already.
  } catch (...) {
    fail_step(std::current_exception());
  }
  on_switch(&execution, false);
  base::current_fiber()->execution = nullptr;
  if (!aborting_) microbatch_finished(execution);
}

void ModuleServer::microbatch_finished(const Execution& body) {
  accumulator_.mark_microbatch_done(body.microbatch);
  tell_others(about_microbatch(Kind::kMicrobatchDone, body.microbatch));
  ++progress_.finished;
  if (!body.late) forward_finished();  // it never called backward
  wake_.signal();
  start_microbatches();
}

void ModuleServer::forward_finished() {
  ++progress_.forward_done;
  for (auto* event : gate_) event->signal();
}

void ModuleServer::backward(const edge_list& roots, variable_list gradients, bool keep_graph) {
  auto* fiber = base::current_fiber();
  auto* execution = fiber == nullptr ? nullptr : static_cast<Execution*>(fiber->execution);
  SMP_REQUIRE(running_ && execution != nullptr && execution->module < 0 && rank() == 0, "rank ",
              rank(), ": model.backward() belongs into the body of smp::step, on its own thread");
  if (aborting_) throw_aborted();
  const int microbatch = execution->microbatch;
  if (!execution->late) {
    accumulator_.recorded(microbatch, 0, roots);
    accumulator_.mark_forward_done(microbatch);
    tell_others(about_microbatch(Kind::kForwardDone, microbatch));
    wait_for_backward_turn(microbatch);
  }
  const auto forward_priority = fiber->priority;
  fiber->priority = priority(schedule::Phase::kBackward, microbatch);
  on_switch(execution, false);
  execution->phase = schedule::Phase::kBackward;
  on_switch(execution, true);
  run_pass(microbatch, execution->late, roots, std::move(gradients), keep_graph);
  execution->late = true;
  on_switch(execution, false);
  execution->phase = schedule::Phase::kForward;
  on_switch(execution, true);
  fiber->priority = forward_priority;
}

/// An error here ends the step even if the body handles it: half of the gradients are summed
/// already.
void ModuleServer::run_pass(int microbatch, bool late, const edge_list& roots,
                            variable_list gradients, bool keep_graph) {
  GradientAccumulator::Pass sink(accumulator_, microbatch, 0, late);
  try {
    run_backward(roots, std::move(gradients), {keep_graph}, {}, &sink);
    accumulator_.close(microbatch, 0);
  } catch (const StepAborted&) {
    throw;
  } catch (...) {
    fail_step(std::current_exception());
    throw;
  }
}

void ModuleServer::wait_for_backward_turn(int microbatch) {
  forward_finished();
  start_microbatches();
  const base::WaitReason reason{"the schedule to begin backward", "", -1, microbatch};
  base::Event turn;
  while (!task_.schedule->may_begin_backward(progress_)) {
    gate_.push_back(&turn);
    turn.wait(reason);
    std::erase(gate_, &turn);
    if (aborting_) throw_aborted();
  }
}

base::Priority ModuleServer::priority(schedule::Phase phase, int microbatch) const {
  return task_.schedule->priority(phase, microbatch, progress_);
}

// ---- outputs ----------------------------------------------------------------------------------

void ModuleServer::send_outputs() {
  const bool wanted = task_.outputs != nullptr && task_.broadcast_outputs;
  auto message = wanted ? pack_outputs(*task_.outputs) : Message{};
  message.kind = Kind::kStop;
  tell_others(std::move(message));
}

void ModuleServer::take_outputs(Message&& stop) {
  if (task_.outputs != nullptr) *task_.outputs = unpack_outputs(std::move(stop));
}

}  // namespace smp::server
