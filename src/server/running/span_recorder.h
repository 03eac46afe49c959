// server/running/span_recorder.h: notes what ran when on one rank, in steps and between them, for
// the timeline and the bubble (docs/design.md, Bubble).
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/thread_time.h"
#include "schedule/step_trace.h"
#include "schedule/trace_ring.h"
#include "server/protocol/ids.h"
#include "smp/rank.h"

namespace smp::server {

using RequestKind = schedule::RequestEvent::Kind;

/// Collects spans and messages; off by default, cheap when off. Threads: the rank's, at every
/// switch of fibers while it is on: two looks at the clock and at most two at the thread's
/// processor time a span; one look at the clock a message.
class SpanRecorder {
 public:
  explicit SpanRecorder(const base::Clock& clock) : clock_(clock) {}
  void enable(bool on) noexcept;
  bool enabled() const noexcept { return enabled_; }
  /// Sets whether ranks outnumber cores, which is assumed at first. If not, the kernel is asked for
  /// the processor time at most every 20 us (base/thread_time.h): asking at both ends of each span
  /// made spans of a few microseconds a third longer.
  void shares_cores(bool yes) noexcept {
    processor_ = base::ThreadTime(yes ? 0 : 20 * base::kMicrosecond);
  }
  /// Makes everything that is recorded go to `ring` too, which must outlive its use; nullptr stops
  /// that.
  void write_to(schedule::TraceRing* ring) noexcept { ring_ = ring; }
  /// Begins step number `step` of the rank, at `time` (ns).
  void begin_step(std::int64_t step, base::Nanoseconds time);
  /// Moves what was recorded of the step into `trace`; the step ended well at `trace.end`.
  void end_step(schedule::StepTrace& trace);
  /// Notes that the thread does `phase` from now on, between two steps. Costs one look at a flag
  /// while off.
  void between(schedule::Phase phase) noexcept {
    if (between_steps_) begin(-1, -1, phase);
  }
  /// Begins a span; one that is open ends.
  void begin(std::int32_t microbatch, std::int32_t module, schedule::Phase phase) noexcept;
  void end() noexcept;
  /// Notes that a message about request `request` of `caller` leaves or comes.
  void note(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request) {
    if (enabled_) add(kind, caller, request);
  }
  /// Moves the recorded spans out.
  std::vector<schedule::Span> take();

 private:
  void end_at(base::Nanoseconds time) noexcept;
  void add(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request);

  const base::Clock& clock_;
  bool enabled_ = false;
  bool open_ = false;
  bool between_steps_ = false;  // one has ended well since recording began
  base::ThreadTime processor_;
  schedule::Span current_;
  schedule::TraceRing* ring_ = nullptr;
  std::vector<schedule::Span> spans_;
  std::vector<schedule::Span> before_;  // between the last step and the one that runs
  std::vector<schedule::RequestEvent> requests_;
};

/// Says, while it lives, that the thread does `phase` between steps; after that it counts as
/// running the program's own code.
class BetweenSteps {
 public:
  BetweenSteps(SpanRecorder& recorder, schedule::Phase phase) : recorder_(recorder) {
    recorder_.between(phase);
  }
  ~BetweenSteps() { recorder_.between(schedule::Phase::kHost); }
  BetweenSteps(const BetweenSteps&) = delete;
  BetweenSteps& operator=(const BetweenSteps&) = delete;

 private:
  SpanRecorder& recorder_;
};

}  // namespace smp::server
