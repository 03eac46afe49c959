// server/step/entry_gate.cpp: counts what a microbatch has on this rank.
#include "server/step/entry_gate.h"

#include <algorithm>

#include "base/check.h"

namespace smp::server {

EntryGate::EntryGate(schedule::StepProgress& progress) : progress_(progress) {
  const bool has_work = progress.has_list() && progress.progress().pp_rank > 0;
  if (has_work) microbatches_.resize(static_cast<std::size_t>(progress.microbatches()));
}

bool EntryGate::holds(ForwardTask& task) {
  if (microbatches_.empty() || progress_.may_enter(task.request.microbatch)) return false;
  waiting_.push_back(std::move(task));
  return true;
}

std::vector<ForwardTask> EntryGate::take_entering() {
  const auto entering = std::stable_partition(
      waiting_.begin(), waiting_.end(),
      [this](const ForwardTask& task) { return !progress_.may_enter(task.request.microbatch); });
  std::vector<ForwardTask> tasks(std::make_move_iterator(entering),
                                 std::make_move_iterator(waiting_.end()));
  waiting_.erase(entering, waiting_.end());
  return tasks;
}

void EntryGate::keep(int microbatch) noexcept {
  if (!microbatches_.empty()) ++microbatches_[static_cast<std::size_t>(microbatch)].kept;
}

void EntryGate::drop(int microbatch) {
  if (microbatches_.empty()) return;
  auto& own = microbatches_[static_cast<std::size_t>(microbatch)];
  SMP_ASSERT(own.kept > 0, "microbatch ", microbatch);
  --own.kept;
  end_if_done(microbatch);
}

void EntryGate::forward_done(int microbatch) {
  if (microbatches_.empty()) return;
  microbatches_.at(static_cast<std::size_t>(microbatch)).forward_done = true;
  end_if_done(microbatch);
}

void EntryGate::microbatch_done(int microbatch) {
  if (!microbatches_.empty()) progress_.ended_here(microbatch);
}

void EntryGate::end_if_done(int microbatch) {
  const auto& own = microbatches_[static_cast<std::size_t>(microbatch)];
  if (own.forward_done && own.kept == 0) progress_.ended_here(microbatch);
}

std::vector<std::pair<std::int32_t, ModuleId>> EntryGate::waiting() const {
  std::vector<std::pair<std::int32_t, ModuleId>> found;
  for (const ForwardTask& task : waiting_) {
    found.emplace_back(task.request.microbatch, task.request.module);
  }
  return found;
}

}  // namespace smp::server
