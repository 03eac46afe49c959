// schedule/step_progress.cpp: counts what the bodies report, and asks the schedule.
#include "schedule/step_progress.h"

#include <utility>

#include "base/check.h"

namespace smp::schedule {

StepProgress::StepProgress(const Schedule& schedule, int microbatches)
    : schedule_(&schedule), bodies_(static_cast<std::size_t>(microbatches)) {
  progress_.microbatches = microbatches;
}

StepProgress::Body& StepProgress::started_body(int microbatch) {
  SMP_ASSERT(microbatch >= 0 && microbatch < progress_.started, "microbatch ", microbatch,
             " has not started; ", progress_.started, " of ", progress_.microbatches, " have");
  return bodies_[static_cast<std::size_t>(microbatch)];
}

std::optional<int> StepProgress::start_next() {
  if (progress_.started == progress_.microbatches) return std::nullopt;
  if (!schedule_->may_start(progress_)) return std::nullopt;
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

std::vector<int> StepProgress::open_gate() {
  if (gate_.empty() || !schedule_->may_begin_backward(progress_)) return {};
  for (const int microbatch : gate_) bodies_[static_cast<std::size_t>(microbatch)].at_gate = false;
  return std::exchange(gate_, {});
}

void StepProgress::body_finished(int microbatch) {
  Body& body = started_body(microbatch);
  SMP_ASSERT(!body.finished, "microbatch ", microbatch, " finished twice");
  body.finished = true;
  ++progress_.finished;
  forward_finished(microbatch);
}

}  // namespace smp::schedule
