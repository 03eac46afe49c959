// server/engine/step_run.cpp: from the first microbatch to the outputs.
#include "server/engine/step_run.h"

#include <algorithm>
#include <utility>

#include "alive/exit_watch.h"
#include "alive/watchdog.h"
#include "base/check.h"
#include "module/call_handler.h"
#include "server/promises/promised_tensor.h"
#include "server/recompute/ahead.h"
#include "server/running/leaf_hooks.h"
#include "server/values/tensor_forms.h"

namespace smp::server {
namespace {

using schedule::Phase;

/// Counts running steps, so that a routed call on a foreign thread can be refused by name.
struct StepsRunning {
  StepsRunning() { ++module::steps_running(); }
  ~StepsRunning() { --module::steps_running(); }
};

// ---- outputs of bodies

/// Some may be promises still: those that are tensors of the body.
void fetch_outputs(const StepTask& task, int microbatch) {
  if (task.outputs == nullptr || task.outputs->empty()) return;
  for (auto& tensor : task.outputs->at(static_cast<std::size_t>(microbatch)).tensors) {
    tensor = fetched(tensor);
  }
}

/// For the other ranks.
void put_outputs(const StepTask& task, StepEnded& message) {
  if (task.outputs == nullptr || !task.broadcast_outputs) return;
  message.outputs = *task.outputs;
  for (auto& output : message.outputs) {
    message.forms.push_back(take_forms(output.tensors, "output", "the step's body"));
  }
}

/// There.
void take_outputs(const StepTask& task, StepEnded& ended) {
  if (task.outputs == nullptr) return;
  *task.outputs = std::move(ended.outputs);
  for (std::size_t i = 0; i < task.outputs->size(); ++i) {
    restore_forms(ended.forms.at(i), (*task.outputs)[i].tensors);
  }
}

// ---- recomputation ahead

/// True if the rank waits for what stands next in its list.
bool is_kept_free(const ServerCore& core) {
  return std::any_of(core.waiting.begin(), core.waiting.end(),
                     [](const Waiting& each) { return each.reason == Reason::kHold; });
}

/// A rank alone does not idle; and where one microbatch follows another, a call may read what its
/// modules keep.
void begin_recomputing_ahead(const ServerCore& core) {
  const auto& task = core.step->task;
  const int ranks = core.port.size();
  if (ranks == 1 || task.one_at_a_time) return;
  RecomputeAhead::Step step;
  step.order = schedule::order_of(*task.schedule, core.port.rank().value(), task.microbatches);
  step.enough =
      schedule::enough_alive(*task.schedule, core.port.rank().value(), ranks, task.microbatches);
  step.stack_bytes = core.options.fiber_stack_bytes;
  step.is_kept_free = [&core] { return is_kept_free(core); };
  step.has_failed = [&core] { return !core.in_good_step(); };
  RecomputeAhead::of(core.port.name().value())->begin_step(step);
}

}  // namespace

// ---- the step ----------------------------------------------------------------------------------

void StepRun::begin(const StepTask& task) {
  core_.port.begin_step();
  auto own = task;
  own.schedule = closings_.schedule_of(task);
  core_.step = std::make_unique<StepState>(core_.port.step(), own, core_.port.rank(), core_.times,
                                           core_.waiting, runner_);
  closings_.begin();
  core_.server.waits_for_workers = false;
  core_.accumulator.begin(task.microbatches, task.gradients);
  core_.scopes.settings.begin_step();
  core_.copies.begin_step();
  // Who starts the microbatches knows. Other ranks can always commit statistics at the end.
  core_.scopes.one_at_a_time = task.one_at_a_time && core_.port.is_first();
  core_.scopes.work = &core_.step->work;
  core_.scopes.modules.begin_step(core_.port.rank());
  begin_recomputing_ahead(core_);
}

void StepRun::run() {
  const StepsRunning counted;
  const Watchdog::Step watched;
  const bool is_first = core_.port.is_first();
  const auto& step = *core_.step;
  if (is_first) start_microbatches();
  serve_until([&] { return is_first ? step.progress.all_finished() : step.closing->may_finish(); });
  finish_gradients();
  serve_until([&] { return is_first ? step.closing->all_finished() : step.ended.has_value(); });
  end();
}

/// The user's fiber: it does what was put off while worker fibers run the modules.
void StepRun::serve_until(c10::function_ref<bool()> done) {
  static constexpr fiber::WaitReason kEndOfStep{"the end of the step", "", -1, -1};
  for (;;) {
    run_deferred();
    core_.server.waits_for_workers = core_.step->failed() || done();
    if (core_.server.waits_for_workers && core_.workers.busy() == 0) return;
    core_.server.wake.wait(kEndOfStep);
  }
}

/// What a poll may only note down, because it runs LibTorch code or user code.
void StepRun::run_deferred() {
  try {
    runner_.free_released();
    router_.flush_releases();
    if (core_.step->failed()) return;
    core_.accumulator.settle();
    if (core_.step->task.gradients != nullptr) core_.step->task.gradients->on_pause();
  } catch (...) {
    failures_.fail_step(std::current_exception());
  }
}

/// The last gradients run hooks of the user.
void StepRun::finish_gradients() {
  if (core_.step->failed()) return;
  states_.require_own_statistics();
  if (core_.step->failed()) return;
  try {
    core_.accumulator.finish();
    if (core_.step->failed()) return;  // while a hook waited
    if (core_.step->task.check) core_.step->task.check();
    FinishGradients finished;
    finished.buffers = core_.copies.report();
    finished.in_order = core_.scopes.modules.has_news_of_order();
    closings_.finish(std::move(finished));
  } catch (...) {
    failures_.fail_step(std::current_exception());
  }
}

void StepRun::end() {
  auto& step = *core_.step;
  try {
    if (!step.failed()) end_well();
  } catch (...) {
    failures_.fail_step(std::current_exception());
  }
  RecomputeAhead::of(core_.port.name().value())->end_step(!step.failed());
  try {
    step.records.clear();
    runner_.end_step();
    router_.end_step();
  } catch (...) {  // a peer is lost
    failures_.fail_step(std::current_exception());
  }
  auto& settings = core_.scopes.settings;
  if (step.failed()) {
    settings.apply_begin_of_step();
  } else {
    settings.apply(step.left_settings.empty() ? settings.base() : step.left_settings.back());
  }
  const auto failure = step.failure;
  failures_.step_ended(step.number, !failure);
  core_.scopes.work = nullptr;
  core_.step.reset();
  if (!failure) {
    base::forgive_failure();
    return Watchdog::calm_down();
  }
  closings_.forget();
  core_.accumulator.drop();
  core_.scopes.statistics.drop();
  core_.copies.drop();
  std::rethrow_exception(failure);
}

void StepRun::end_well() {
  auto& step = *core_.step;
  check_left_settings();
  const bool is_first = core_.port.is_first();
  StepEnded own;
  if (is_first) {
    if (core_.port.size() > 1) put_outputs(step.task, own);  // what cannot be sent fails the step
    step.closing->complete(own);
  }
  core_.scopes.statistics.commit();
  core_.copies.note_commit();
  core_.copies.follow((is_first ? own : *step.ended).buffers);
  if (is_first) {
    closings_.note_end(own);
    deliver(own);
  } else {
    closings_.remember(*step.ended);
    take_outputs(step.task, *step.ended);
  }
  core_.counters.records_left += step.records.size();
}

/// The user may write to the outputs as soon as the step returns, so they must have left.
void StepRun::deliver(const StepEnded& message) {
  const auto leaving = std::make_shared<d2d::Departure>();
  leaving->on_left = &core_.server.wake;
  core_.port.send_to_others(message, leaving);
  serve_until([&] { return leaving->in_flight == 0; });
  leaving->on_left = nullptr;
}

/// Microbatches all began with the same settings. If their bodies leave others, they must agree.
void StepRun::check_left_settings() const {
  const auto& left = core_.step->left_settings;
  for (std::size_t i = 1; i < left.size(); ++i) {
    const auto& before = *left[i - 1];
    const auto [first, second] = std::mismatch(before.begin(), before.end(), left[i]->begin());
    if (first == before.end()) continue;
    const auto flag = static_cast<std::size_t>(first - before.begin());
    const auto& board = core_.scopes.settings;
    SMP_REQUIRE(false, "the step's body leaves ", board.flags().describe(flag, *first != 0),
                " in microbatch ", i - 1, " and ", board.flags().describe(flag, *second != 0),
                " in microbatch ", i,
                "; microbatches run at the same time, so each must leave the same modes behind");
  }
}

void StepRun::leave_settings(ExecutionScope& scope) {
  auto& step = *core_.step;
  auto& board = core_.scopes.settings;
  const auto left = scope.settings().note();
  if (step.task.one_at_a_time) {
    // So must later steps, if it may matter how the next microbatch begins.
    if (scope.settings().body().changes_the_next(board.base(), left)) {
      core_.scopes.modules.note_state();
    }
    return board.begin_microbatches_with(left);
  }
  if (step.task.microbatches > 1) {
    scope.settings().body().require_repeatable(board.flags(), board.base(), left);
  }
  if (left == board.base() || *left == *board.base()) return;
  if (step.left_settings.empty()) {
    step.left_settings.assign(static_cast<std::size_t>(step.task.microbatches), board.base());
  }
  step.left_settings.at(static_cast<std::size_t>(scope.identity().microbatch)) = left;
}

// ---- messages ----------------------------------------------------------------------------------

void StepRun::on_message(const ForwardDone& message) {
  core_.accumulator.mark_forward_done(message.microbatch);
  core_.step->admission.forward_done(message.microbatch);
  core_.server.wake.signal();
}

void StepRun::on_message(const MicrobatchDone& message) {
  runner_.microbatch_done(message.microbatch);
  core_.server.wake.signal();
}

void StepRun::on_message(PpRank source, const FinishGradients& message) {
  core_.step->closing->on_message(source, message);
}

void StepRun::on_message(StepEnded&& message) {
  closings_.on_message(message);
  core_.step->ended = std::move(message);
  core_.server.wake.signal();
}

bool StepRun::tell_withheld() {
  if (!core_.in_good_step()) return false;
  try {
    return core_.step->closing->tell_withheld();
  } catch (...) {  // a peer is lost
    failures_.fail_step(std::current_exception());
    return true;
  }
}

// ---- bodies, on pp_rank 0 ----------------------------------------------------------------------

void StepRun::start_microbatches() {
  while (core_.in_good_step()) {
    const auto microbatch = core_.step->admission.next_body();
    if (!microbatch) return;
    try {
      core_.workers.launch(BodyTask{*microbatch}, core_.priority(Phase::kForward, *microbatch));
    } catch (...) {  // no worker could be made
      failures_.fail_step(std::current_exception());
    }
  }
}

void StepRun::run(BodyTask task) {
  const int microbatch = task.microbatch;
  if (core_.step->failed()) return;
  core_.step->progress.begins(Phase::kForward, microbatch);
  const auto execution = core_.accumulator.open(microbatch, OrderKey(), false);
  const auto key = core_.random_key(microbatch);
  auto identity = ExecutionIdentity{kBody, microbatch, Phase::kForward, false, execution};
  {
    ExecutionScope scope(core_.scopes, identity, {}, key);
    // Until it computes: other ranks have nothing to do before it asks them.
    set_priority(schedule::passing_on(fiber::current_fiber()->priority));
    try {
      const base::RandomScope random(random_key_of_body(key));
      scope.run([&] { core_.step->task.body(microbatch); });
      fetch_outputs(core_.step->task, microbatch);
      leave_settings(scope);
      scope.collect_statistics();
      states_.watch_statistics_of_body();
    } catch (const StepAborted&) {
      // The failure is known already.
    } catch (...) {
      failures_.fail_step(std::current_exception());
    }
    identity = scope.identity();
  }
  if (!core_.step->failed()) body_finished(identity);
}

void StepRun::body_finished(const ExecutionIdentity& body) {
  runner_.microbatch_done(body.microbatch);
  core_.step->closing->microbatch_done(body.microbatch);
  core_.step->admission.body_ended(body.microbatch);
  core_.server.wake.signal();
  start_microbatches();
}

/// A hook of a leaf runs for the microbatch whose gradient it is, on whatever fiber.
int StepRun::current_microbatch() const noexcept {
  if (const auto* hooks = LeafHooks::current()) return static_cast<int>(hooks->microbatch());
  const auto* scope = ExecutionScope::current();
  return scope == nullptr ? -1 : scope->identity().microbatch;
}

std::optional<double> StepRun::current_weight() const {
  const int microbatch = current_microbatch();
  if (core_.step == nullptr || microbatch < 0) return std::nullopt;
  return core_.step->loss_weights.at(static_cast<std::size_t>(microbatch));
}

void StepRun::backward(const std::vector<at::Tensor>& roots,
                       const std::vector<at::Tensor>& gradients, bool keep_graph) {
  backward_.run(roots, gradients, keep_graph);
}

/// Others may start.
void StepRun::forward_done(int microbatch) {
  core_.accumulator.mark_forward_done(microbatch);
  core_.step->closing->forward_done(microbatch);
  core_.step->admission.body_forward_done(microbatch);
  start_microbatches();
}

}  // namespace smp::server
