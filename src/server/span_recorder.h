// server/span_recorder.h: notes what ran when on one rank, for the timeline and the bubble
// (docs/design.md, Bubble).
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "schedule/step_trace.h"
#include "schedule/trace_ring.h"
#include "server/ids.h"
#include "smp/rank.h"

namespace smp::server {

using RequestKind = schedule::RequestEvent::Kind;

/// Collects spans and messages; off by default, cheap when off. Threads: the rank's, at every
/// switch of fibers while it is on: two looks at the clock and two at the thread's processor time a
/// span; one look at the clock a message.
class SpanRecorder {
 public:
  explicit SpanRecorder(const base::Clock& clock) : clock_(clock) {}
  void enable(bool on) noexcept { enabled_ = on; }
  bool enabled() const noexcept { return enabled_; }
  /// Writes all of it to `ring` too, which outlives its use; nullptr: no more.
  void write_to(schedule::TraceRing* ring) noexcept { ring_ = ring; }
  /// Of the rank's step.
  void begin_step(std::int64_t step, base::Nanoseconds time) noexcept {
    if (enabled_ && ring_ != nullptr) ring_->begin_step(step, time);
  }
  void end_step(std::int64_t step, base::Nanoseconds time) noexcept {
    if (enabled_ && ring_ != nullptr) ring_->end_step(step, time);
  }
  /// A span begins; one that is open ends.
  void begin(std::int32_t microbatch, std::int32_t module, schedule::Phase phase) noexcept;
  void end() noexcept;
  /// A message about request `request` of `caller` leaves or comes.
  void note(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request) {
    if (enabled_) add(kind, caller, request);
  }
  /// Moves the spans out.
  std::vector<schedule::Span> take();
  std::vector<schedule::RequestEvent> take_requests();

 private:
  void add(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request);

  const base::Clock& clock_;
  bool enabled_ = false;
  bool open_ = false;
  schedule::Span current_;
  schedule::TraceRing* ring_ = nullptr;
  std::vector<schedule::Span> spans_;
  std::vector<schedule::RequestEvent> requests_;
};

}  // namespace smp::server
