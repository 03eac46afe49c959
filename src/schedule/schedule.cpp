// schedule/schedule.cpp: the two schedules of paper §4.3, and all schedules by name.
#include "schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "schedule/list_schedule.h"
#include "schedule/named_lists.h"

namespace smp::schedule {
namespace {

class Simple final : public Schedule {
 public:
  const char* name() const noexcept override { return "simple"; }
  bool may_start(const Progress&) const noexcept override { return true; }
  bool may_begin_backward(const Progress& progress) const noexcept override {
    return progress.forward_done == progress.microbatches;
  }
  std::int64_t priority(Phase phase, int microbatch, const Progress& p) const noexcept override {
    return phase == Phase::kForward ? microbatch : p.microbatches + microbatch;
  }
  int most_alive(int, int microbatches) const noexcept override { return microbatches; }
};

class Interleaved final : public Schedule {
 public:
  Interleaved(int active_microbatches, int lead) : cap_(active_microbatches), lead_(lead) {}
  const char* name() const noexcept override { return "interleaved"; }
  bool may_start(const Progress& progress) const noexcept override {
    return progress.in_flight() < cap_;
  }
  bool may_begin_backward(const Progress&) const noexcept override { return true; }
  std::int64_t priority(Phase phase, int microbatch, const Progress&) const noexcept override {
    const std::int64_t place = microbatch;
    return phase == Phase::kForward ? 2 * place + 1 : 2 * (place + lead_);
  }
  int most_alive(int, int microbatches) const noexcept override {
    return std::min(cap_, microbatches);
  }

 private:
  int cap_;
  int lead_;
};

/// Returns the lead of forwards if more is in flight than fills the pipeline, else 0. A backward
/// that always went first would starve forwards, whose backwards then come late: where ranks have
/// several stages 1.08 of the ideal step instead of 1.04 with 4 ranks and 1.07 instead of 1.01 with
/// 8 (perf/bubble.cpp, planned).
int usual_lead(const StepShape& shape) {
  const int to_spare = shape.active_microbatches - shape.pp_size - 2;
  return std::clamp(to_spare, 0, shape.pp_size);
}

}  // namespace

std::unique_ptr<Schedule> make_simple() { return std::make_unique<Simple>(); }

std::unique_ptr<Schedule> make_interleaved(int active_microbatches, int lead) {
  SMP_REQUIRE(active_microbatches >= 1, "active_microbatches is ", active_microbatches,
              "; at least one microbatch must be in flight");
  SMP_ASSERT(lead >= 0, "a lead of ", lead);
  return std::make_unique<Interleaved>(active_microbatches, lead);
}

bool splits_any_backward(const Schedule& schedule, int pp_rank, int microbatches) noexcept {
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    if (schedule.splits_backward(pp_rank, microbatch)) return true;
  }
  return false;
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, const StepShape& shape) {
  if (name == "simple") return make_simple();
  if (name == "interleaved") {
    return make_interleaved(shape.active_microbatches, usual_lead(shape));
  }
  return make_list_schedule(name, lists_named(name, shape));
}

}  // namespace smp::schedule
