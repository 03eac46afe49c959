// server/admission/work_times.cpp: see the header.
#include "server/admission/work_times.h"

namespace smp::server {

WorkTimes::Measured::Measured(WorkTimes& times, const schedule::StepProgress& progress,
                              ExecutionScope& scope)
    : times_(times),
      scope_(progress.has_list() ? &scope : nullptr),
      phase_(scope.identity().phase) {
  if (scope_ != nullptr) scope_->stopwatch().start(times_.clock_);
}

WorkTimes::Measured::~Measured() {
  if (scope_ == nullptr) return;
  times_.rule_.computed(phase_, scope_->stopwatch().elapsed());
  scope_->stopwatch().stop();
}

}  // namespace smp::server
