// server/engine/dynamic_engine.cpp: from the first microbatch to the outputs.
#include "server/engine/dynamic_engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "alive/watchdog.h"
#include "base/check.h"
#include "base/log.h"
#include "module/call_handler.h"
#include "server/promises/promised_tensor.h"
#include "server/values/tensor_forms.h"

namespace smp::server {
namespace {

using schedule::Phase;

/// Counts running steps, so that a routed call on a foreign thread can be refused by name.
struct StepsRunning {
  StepsRunning() { ++module::steps_running(); }
  ~StepsRunning() { --module::steps_running(); }
};

/// Why ranks must be told in the running step how far each microbatch has come, whether steps end
/// alike or not; nullptr: they need not.
const char* what_needs_messages(const ServerCore& core) {
  const auto& step = *core.step;
  if (step.task.one_at_a_time) return "modules keep state, so microbatches run one after the other";
  if (core.scopes.modules.any_in_order()) return "microbatches enter a module in order";
  return nullptr;
}

void warn_if_not_replayed(const ServerCore& core) {
  const char* const why = what_needs_messages(core);
  if (why == nullptr || core.port.size() == 1) return;
  base::log(base::LogLevel::kWarning, "rank ", core.port.name(),
            ": static_mode: steps keep their control messages, because ", why,
            "; it has no effect, so leave it out, or change that");
}

}  // namespace

// ---- the step ----------------------------------------------------------------------------------

void DynamicEngine::begin(const StepTask& task) {
  core_.port.begin_step();
  auto own = task;
  const auto order = orders_.find(task.microbatches);
  if (keeps_order_ && !task.one_at_a_time && order != orders_.end()) {
    own.schedule = &order_.emplace(*task.schedule, order->second);
  }
  core_.step = std::make_unique<StepState>(core_.port.step(), own, core_.port.rank(), core_.times,
                                           core_.waiting, runner_);
  core_.step->keeps_to_record = keeps_order_ && !task.one_at_a_time;
  core_.step->replayed = may_replay();
  if (core_.step->replayed && core_.step->progress.has_list()) {
    core_.step->ends.emplace(task.microbatches, core_.port.size());
    if (steps_that_stood_still_ > 1) core_.step->ends->hide_nothing();
  }
  news_ = false;
  core_.server.waits_for_workers = false;
  core_.accumulator.begin(task.microbatches, task.gradients);
  core_.scopes.settings.begin_step();
  core_.copies.begin_step();
  // Who starts the microbatches knows. Other ranks can always commit statistics at the end.
  core_.scopes.one_at_a_time = task.one_at_a_time && core_.port.is_first();
  core_.scopes.modules.begin_step(core_.port.rank());
}

bool DynamicEngine::may_replay() const {
  return core_.port.is_first() && core_.port.size() > 1 && recorded_.may_replay() &&
         what_needs_messages(core_) == nullptr;
}

void DynamicEngine::run() {
  const StepsRunning counted;
  const Watchdog::Step watched;
  if (core_.port.is_first()) start_microbatches();
  serve_until(&DynamicEngine::microbatches_are_done);
  finish_gradients();
  serve_until(&DynamicEngine::ranks_are_done);
  end();
}

/// The user's fiber: it does what was put off while worker fibers run the modules.
void DynamicEngine::serve_until(bool (DynamicEngine::*done)() const noexcept) {
  static constexpr fiber::WaitReason kEndOfStep{"the end of the step", "", -1, -1};
  for (;;) {
    run_deferred();
    core_.server.waits_for_workers = core_.step->failed() || (this->*done)();
    if (core_.server.waits_for_workers && core_.workers.busy() == 0) return;
    core_.server.wake.wait(kEndOfStep);
  }
}

/// What a poll may only note down, because it runs LibTorch code or user code.
void DynamicEngine::run_deferred() {
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

bool DynamicEngine::microbatches_are_done() const noexcept {
  return core_.port.is_first() ? core_.step->progress.all_finished() : core_.step->finish_asked;
}

bool DynamicEngine::ranks_are_done() const noexcept {
  const auto& step = *core_.step;
  if (!core_.port.is_first()) return step.ended.has_value();
  return step.replayed || step.ranks_finished == core_.port.size() - 1;
}

/// What a replayed step does without.
void DynamicEngine::tell_others(const Message& message) {
  if (!core_.step->replayed) core_.port.send_to_others(message);
}

/// Under windows a rank waits until a microbatch has ended there, if it does not see that itself.
void DynamicEngine::tell_end(const MicrobatchDone& message) {
  auto& step = *core_.step;
  if (!step.ends) return tell_others(message);
  for (const PpRank rank : step.ends->to_tell(message.microbatch))
    core_.port.send(rank, Message(message));
}

/// Perhaps a rank waits for the end of a microbatch that has ended. Or another one computes for
/// long, so later steps withhold as before unless it happens again.
bool DynamicEngine::tell_all_ends() {
  if (!core_.in_good_step() || !core_.step->ends) return false;
  auto& ends = *core_.step->ends;
  const auto untold = ends.take_untold();
  if (untold.empty()) return false;
  ++steps_that_stood_still_;
  ends.hide_nothing();
  try {
    for (const auto& [microbatch, ranks] : untold) {
      for (const PpRank rank : ranks) core_.port.send(rank, Message(MicrobatchDone{microbatch}));
    }
  } catch (...) {  // a peer is lost
    failures_.fail_step(std::current_exception());
  }
  return true;
}

/// The last gradients run hooks of the user. No rank's step succeeds before those of all have,
/// unless it is replayed.
void DynamicEngine::finish_gradients() {
  if (core_.step->failed()) return;
  states_.require_own_statistics();
  if (core_.step->failed()) return;
  try {
    core_.accumulator.finish();
    if (core_.step->failed()) return;  // while a hook waited
    FinishGradients finished;
    finished.buffers = core_.copies.report();
    finished.in_order = core_.scopes.modules.has_news_of_order();
    core_.port.is_first() ? tell_others_to_finish(finished) : tell_first_stage(std::move(finished));
  } catch (...) {
    failures_.fail_step(std::current_exception());
  }
}

/// A step that was to be replayed is not if something new is to be compared.
void DynamicEngine::tell_others_to_finish(const FinishGradients& own) {
  const bool news = core_.copies.is_news(core_.port.name(), own.buffers) || own.in_order;
  if (news || !recorded_.may_replay()) core_.step->replayed = false;
  if (core_.step->replayed) return;
  news_ |= news;
  core_.copies.note(core_.port.name(), own.buffers);
  core_.port.send_to_others(FinishGradients{});
}

void DynamicEngine::tell_first_stage(FinishGradients&& finished) {
  const auto& step = *core_.step;
  const bool news = core_.copies.is_news(core_.port.name(), finished.buffers) || finished.in_order;
  const bool replayed = step.ended && step.ended->replayed;
  if (replayed) require_same_facts(core_.port.name(PpRank(0)), step.ended->facts);
  if (replayed && !news) return;
  finished.facts = step.task.facts;
  core_.port.send(PpRank(0), Message(std::move(finished)));
}

void DynamicEngine::require_same_facts(GlobalRank other, const std::string& facts) const {
  const auto& task = core_.step->task;
  if (!task.explain_difference || facts == task.facts) return;
  const auto text = task.explain_difference(other, facts);
  SMP_REQUIRE(text.empty(), text);
}

void DynamicEngine::end() {
  auto& step = *core_.step;
  if (!step.failed()) {
    try {
      check_left_settings();
      if (core_.port.is_first()) {
        auto message = last_message();  // outputs that cannot be sent fail the step
        if (!step.replayed) message.buffers = core_.copies.judge();
        core_.scopes.statistics.commit();
        core_.copies.note_commit();
        core_.copies.follow(message.buffers);
        note_end(message);
        remember_order(message);
        deliver(message);
      } else {
        core_.scopes.statistics.commit();
        core_.copies.note_commit();
        core_.copies.follow(core_.step->ended->buffers);
        remember_order(*core_.step->ended);
        take_outputs();
      }
      core_.counters.records_left += step.records.size();
    } catch (...) {
      failures_.fail_step(std::current_exception());
    }
  }
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
  core_.step.reset();
  if (!failure) return Watchdog::calm_down();
  recorded_.forget();
  keeps_order_ = false;
  core_.scopes.modules.may_be_replayed(false);
  core_.accumulator.drop();
  core_.scopes.statistics.drop();
  core_.copies.drop();
  std::rethrow_exception(failure);
}

/// On pp_rank 0: the step ended well, which `message` is to tell.
void DynamicEngine::note_end(StepEnded& message) {
  if (core_.step->replayed) {
    if (core_.counters.replayed++ == 0) {
      base::log(base::LogLevel::kInfo, "rank ", core_.port.name(), ": static_mode: from step ",
                core_.step->number, " on steps need no control messages");
    }
  } else {
    const bool news = news_ || !message.buffers.empty();
    const bool knew = recorded_.may_replay();
    message.fastest = recorded_.ended(news, kind_of_step(), core_.step->task.microbatches,
                                      core_.clock.now() - core_.step->start);
    if (!knew && recorded_.may_replay()) warn_if_not_replayed(core_);
  }
  message.keep_order = recorded_.may_replay();
  message.in_order = core_.scopes.modules.any_in_order();
}

RecordedSteps::Kind DynamicEngine::kind_of_step() const noexcept {
  using Kind = RecordedSteps::Kind;
  if (!core_.step->task.in_full) return Kind::kOther;
  return core_.step->work.has_backward() ? Kind::kTraining : Kind::kForward;
}

void DynamicEngine::remember_order(const StepEnded& message) {
  if (message.fastest) orders_[core_.step->task.microbatches] = core_.step->work;
  keeps_order_ = message.keep_order;
  if (message.in_order) core_.scopes.modules.all_know_of_order();
  core_.scopes.modules.may_be_replayed(keeps_order_ && !core_.port.is_first());
}

/// Microbatches all began with the same settings. If their bodies leave others, they must agree.
void DynamicEngine::check_left_settings() const {
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

void DynamicEngine::leave_settings(ExecutionScope& scope) {
  auto& step = *core_.step;
  auto& board = core_.scopes.settings;
  const auto left = scope.note_settings();
  if (step.task.one_at_a_time) {
    // So must later steps, if it may matter how the next microbatch begins.
    if (scope.body_settings().changes_the_next(board.base(), left)) {
      core_.scopes.modules.note_state();
    }
    return board.begin_microbatches_with(left);
  }
  if (step.task.microbatches > 1) {
    scope.body_settings().require_repeatable(board.flags(), board.base(), left);
  }
  if (left == board.base() || *left == *board.base()) return;
  if (step.left_settings.empty()) {
    step.left_settings.assign(static_cast<std::size_t>(step.task.microbatches), board.base());
  }
  step.left_settings.at(static_cast<std::size_t>(scope.identity().microbatch)) = left;
}

/// What pp_rank 0 tells the others at the end.
StepEnded DynamicEngine::last_message() const {
  const auto& task = core_.step->task;
  StepEnded message;
  message.replayed = core_.step->replayed;
  if (message.replayed) message.facts = task.facts;
  if (task.outputs == nullptr || !task.broadcast_outputs || core_.port.size() == 1) return message;
  message.outputs = *task.outputs;
  for (auto& output : message.outputs) {
    message.forms.push_back(take_forms(output.tensors, "output", "the step's body"));
  }
  return message;
}

void DynamicEngine::take_outputs() {
  auto* outputs = core_.step->task.outputs;
  if (outputs == nullptr) return;
  auto& ended = *core_.step->ended;
  *outputs = std::move(ended.outputs);
  for (std::size_t i = 0; i < outputs->size(); ++i) {
    restore_forms(ended.forms.at(i), (*outputs)[i].tensors);
  }
}

/// The user may write to the outputs as soon as the step returns, so they must have left.
void DynamicEngine::deliver(const StepEnded& message) {
  outputs_leaving_ = std::make_shared<d2d::Departure>();
  outputs_leaving_->on_left = &core_.server.wake;
  core_.port.send_to_others(message, outputs_leaving_);
  serve_until(&DynamicEngine::outputs_have_left);
  outputs_leaving_->on_left = nullptr;
}

bool DynamicEngine::outputs_have_left() const noexcept { return outputs_leaving_->in_flight == 0; }

// ---- messages ----------------------------------------------------------------------------------

void DynamicEngine::on_message(const ForwardDone& message) {
  core_.accumulator.mark_forward_done(message.microbatch);
  core_.step->admission.forward_done(message.microbatch);
  core_.server.wake.signal();
}

void DynamicEngine::on_message(const MicrobatchDone& message) {
  runner_.microbatch_done(message.microbatch);
  core_.server.wake.signal();
}

void DynamicEngine::on_message(PpRank source, const FinishGradients& message) {
  // The step has ended here, and only its outputs have not left yet.
  if (core_.port.is_first() && core_.step->replayed) return on_late_message(source, message);
  const auto from = core_.port.name(source);
  if (core_.port.is_first()) {
    require_same_facts(from, message.facts);
    news_ |= core_.copies.is_news(from, message.buffers) || message.in_order;
    if (message.in_order) core_.scopes.modules.note_order_elsewhere();
  }
  core_.copies.note(from, message.buffers);
  core_.step->finish_asked = true;
  ++core_.step->ranks_finished;
  core_.server.wake.signal();
}

/// The step that runs, if it has not begun to end, ends as if it were not replayed, so that all
/// say what they know.
void DynamicEngine::on_late_message(PpRank source, const FinishGradients& message) {
  const auto from = core_.port.name(source);
  static_cast<void>(core_.copies.is_news(from, message.buffers));
  core_.copies.note(from, message.buffers);
  if (message.in_order) core_.scopes.modules.note_order_elsewhere();
  recorded_.forget();
}

void DynamicEngine::on_message(StepEnded&& message) {
  if (message.replayed) core_.step->finish_asked = true;
  core_.step->ended = std::move(message);
  core_.server.wake.signal();
}

// ---- bodies, on pp_rank 0 ----------------------------------------------------------------------

void DynamicEngine::start_microbatches() {
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

void DynamicEngine::run(BodyTask task) {
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
      fetch_outputs(microbatch);
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

/// Some may be promises still: those that are tensors of the body.
void DynamicEngine::fetch_outputs(int microbatch) const {
  auto* outputs = core_.step->task.outputs;
  if (outputs == nullptr || outputs->empty()) return;
  for (auto& tensor : outputs->at(static_cast<std::size_t>(microbatch)).tensors) {
    tensor = fetched(tensor);
  }
}

void DynamicEngine::body_finished(const ExecutionIdentity& body) {
  runner_.microbatch_done(body.microbatch);
  tell_end(MicrobatchDone{body.microbatch});
  core_.step->admission.body_ended(body.microbatch);
  core_.server.wake.signal();
  start_microbatches();
}

int DynamicEngine::current_microbatch() const noexcept {
  const auto* scope = ExecutionScope::current();
  return scope == nullptr ? -1 : scope->identity().microbatch;
}

void DynamicEngine::backward(const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& gradients, bool keep_graph) {
  backward_.run(roots, gradients, keep_graph);
}

/// Others may start.
void DynamicEngine::forward_done(int microbatch) {
  core_.accumulator.mark_forward_done(microbatch);
  tell_others(ForwardDone{microbatch});
  core_.step->admission.body_forward_done(microbatch);
  start_microbatches();
}

}  // namespace smp::server
