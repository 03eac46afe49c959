// server/replay/step_closings.cpp: whether a step may do without control messages.
#include "server/replay/step_closings.h"

#include <utility>

#include "base/log.h"

namespace smp::server {
namespace {

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

const schedule::Schedule* StepClosings::schedule_of(const StepTask& task) {
  const auto order = orders_.find(task.microbatches);
  if (keeps_order_ && !task.one_at_a_time && order != orders_.end()) {
    return &order_.emplace(*task.schedule, order->second);
  }
  return task.schedule;
}

void StepClosings::begin() {
  auto& step = *core_.step;
  step.keeps_to_record = keeps_order_ && !step.task.one_at_a_time;
  step.closing = &announced_.emplace(core_, recorded_);
  if (may_replay()) step.closing = &replayed_.emplace(core_, recorded_, stood_still_);
}

bool StepClosings::may_replay() const {
  return core_.port.is_first() && core_.port.size() > 1 && recorded_.may_replay() &&
         what_needs_messages(core_) == nullptr;
}

void StepClosings::finish(FinishGradients&& own) {
  const bool news = core_.copies.is_news(core_.port.name(), own.buffers) || own.in_order;
  const bool announced = news || !recorded_.may_replay();
  if (core_.port.is_first() && announced) core_.step->closing = &*announced_;
  core_.step->closing->finish(std::move(own), news);
}

void StepClosings::on_message(const StepEnded& message) {
  if (message.replayed) {
    core_.step->closing = &replayed_.emplace(core_, recorded_, stood_still_);
  }
}

void StepClosings::note_end(StepEnded& message) {
  const bool knew = recorded_.may_replay();
  core_.step->closing->note_end(message);
  if (!knew && recorded_.may_replay()) warn_if_not_replayed(core_);
  message.keep_order = recorded_.may_replay();
  message.in_order = core_.scopes.modules.any_in_order();
  remember(message);
}

void StepClosings::remember(const StepEnded& message) {
  if (message.fastest) orders_[core_.step->task.microbatches] = core_.step->work;
  keeps_order_ = message.keep_order;
  if (message.in_order) core_.scopes.modules.all_know_of_order();
  core_.scopes.modules.may_be_replayed(keeps_order_ && !core_.port.is_first());
}

void StepClosings::forget() noexcept {
  recorded_.forget();
  keeps_order_ = false;
  core_.scopes.modules.may_be_replayed(false);
}

}  // namespace smp::server
