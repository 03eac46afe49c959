// schedule/schedule.cpp: the two schedules of paper §4.3.
#include "schedule/schedule.h"

#include "base/check.h"

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
};

class Interleaved final : public Schedule {
 public:
  explicit Interleaved(int active_microbatches) : cap_(active_microbatches) {}
  const char* name() const noexcept override { return "interleaved"; }
  bool may_start(const Progress& progress) const noexcept override {
    return progress.in_flight() < cap_;
  }
  bool may_begin_backward(const Progress&) const noexcept override { return true; }
  std::int64_t priority(Phase phase, int microbatch, const Progress& p) const noexcept override {
    return phase == Phase::kBackward ? microbatch : p.microbatches + microbatch;
  }

 private:
  int cap_;
};

}  // namespace

std::unique_ptr<Schedule> make_simple() { return std::make_unique<Simple>(); }

std::unique_ptr<Schedule> make_interleaved(int active_microbatches) {
  SMP_REQUIRE(active_microbatches >= 1, "active_microbatches is ", active_microbatches,
              "; at least one microbatch must be in flight");
  return std::make_unique<Interleaved>(active_microbatches);
}

std::unique_ptr<Schedule> make_schedule(const std::string& name, int active_microbatches) {
  if (name == "simple") return make_simple();
  SMP_REQUIRE(name == "interleaved", "unknown pipeline schedule \"", name,
              "\"; use \"simple\" or \"interleaved\"");
  return make_interleaved(active_microbatches);
}

}  // namespace smp::schedule
