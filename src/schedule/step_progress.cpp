// schedule/step_progress.cpp: counts what the bodies report, and asks the schedule.
#include "schedule/step_progress.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace smp::schedule {

StepProgress::StepProgress(const Schedule& schedule, int microbatches, int pp_rank)
    : schedule_(&schedule),
      list_(schedule.list(pp_rank)),
      place_(list_, microbatches),
      bodies_(static_cast<std::size_t>(microbatches)) {
  SMP_REQUIRE(list_ == nullptr || microbatches <= list_->microbatches(), "schedule ",
              schedule.name(), " is for ", list_ ? list_->microbatches() : 0,
              " microbatches, and the step has ", microbatches);
  progress_.microbatches = microbatches;
  progress_.pp_rank = pp_rank;
  if (list_ == nullptr) return;
  for (int i = 0; i < microbatches; ++i) entering_.push_back(i);
  std::ranges::stable_sort(entering_, {}, [&](int i) { return list_->ends_before(i); });
}

StepProgress::Body& StepProgress::started_body(int microbatch) {
  SMP_ASSERT(microbatch >= 0 && microbatch < progress_.started, "microbatch ", microbatch,
             " has not started; ", progress_.started, " of ", progress_.microbatches, " have");
  return bodies_[static_cast<std::size_t>(microbatch)];
}

std::optional<int> StepProgress::start_next() {
  if (progress_.started == progress_.microbatches) return std::nullopt;
  if (!schedule_->may_start(progress_) || !may_enter(progress_.started)) return std::nullopt;
  return progress_.started++;
}

void StepProgress::forward_finished(int microbatch) {
  Body& body = started_body(microbatch);
  if (!std::exchange(body.forward_finished, true)) ++progress_.forward_done;
}

bool StepProgress::may_begin_backward(int microbatch) {
  Body& body = started_body(microbatch);
  if (schedule_->may_begin_backward(progress_)) return true;
  if (!std::exchange(body.at_gate, true)) gate_.push_back(microbatch);
  return false;
}

bool StepProgress::gate_would_open(int microbatch) const {
  auto then = progress_;
  if (!bodies_.at(static_cast<std::size_t>(microbatch)).forward_finished) ++then.forward_done;
  return schedule_->may_begin_backward(then);
}

std::vector<int> StepProgress::open_gate() {
  if (gate_.empty() || !schedule_->may_begin_backward(progress_)) return {};
  for (const int microbatch : gate_) bodies_[static_cast<std::size_t>(microbatch)].at_gate = false;
  return std::exchange(gate_, {});
}

bool StepProgress::may_enter(int microbatch) const {
  return list_ == nullptr || ends_ >= list_->ends_before(microbatch);
}

std::optional<int> StepProgress::next_to_enter() {
  if (entered_ == entering_.size() || !may_enter(entering_[entered_])) return std::nullopt;
  return entering_[entered_++];
}

void StepProgress::ended_here(int microbatch) {
  SMP_ASSERT(microbatch >= 0 && microbatch < progress_.microbatches, "microbatch ", microbatch,
             " of ", progress_.microbatches);
  bodies_[static_cast<std::size_t>(microbatch)].ended_here = true;
  if (list_ == nullptr) return;
  place_.end(microbatch);
  const auto& ends = list_->ends();
  // The schedule may be for more microbatches; nobody waits for those, which are the highest.
  const auto ended = [&](int other) {
    const auto index = static_cast<std::size_t>(other);
    return index < bodies_.size() && bodies_[index].ended_here;
  };
  ends_ =
      static_cast<int>(std::find_if_not(ends.begin() + ends_, ends.end(), ended) - ends.begin());
}

void StepProgress::body_finished(int microbatch) {
  Body& body = started_body(microbatch);
  SMP_ASSERT(!body.finished, "microbatch ", microbatch, " finished twice");
  body.finished = true;
  ++progress_.finished;
  forward_finished(microbatch);
  ended_here(microbatch);
}

}  // namespace smp::schedule
