// server/running/span_recorder.cpp: at most one span is open.
#include "server/running/span_recorder.h"

#include <algorithm>
#include <utility>

namespace smp::server {

void SpanRecorder::enable(bool on) noexcept {
  if (std::exchange(between_steps_, false)) {  // nothing of it belongs to a step
    open_ = false;
    spans_.clear();
  }
  enabled_ = on;
}

void SpanRecorder::begin_step(std::int64_t step, base::Nanoseconds time) {
  if (!enabled_) return;
  if (open_) end_at(time);
  before_ = std::exchange(spans_, {});
  if (!std::exchange(between_steps_, false)) before_.clear();  // of a step that failed
  requests_.clear();
  if (ring_ != nullptr) ring_->begin_step(step, time);
}

void SpanRecorder::end_step(schedule::StepTrace& trace) {
  trace.spans = take();
  trace.requests = std::exchange(requests_, {});
  trace.between = std::exchange(before_, {});
  if (!enabled_) return;
  if (ring_ != nullptr) ring_->end_step(trace.step, trace.end);
  between_steps_ = true;
  between(schedule::Phase::kOther);
}

void SpanRecorder::begin(std::int32_t microbatch, std::int32_t module,
                         schedule::Phase phase) noexcept {
  if (!enabled_) return;
  if (open_) end();
  open_ = true;
  const auto now = clock_.now();
  current_ = {now, 0, processor_.at(now), microbatch, module, phase};
  if (ring_ != nullptr) ring_->begin(current_);
}

void SpanRecorder::end() noexcept {
  if (open_) end_at(clock_.now());
}

void SpanRecorder::end_at(base::Nanoseconds time) noexcept {
  open_ = false;
  current_.end = time;
  // What was trusted may turn out to have been less.
  current_.cpu = std::max<base::Nanoseconds>(0, processor_.at(time) - current_.cpu);
  if (ring_ != nullptr) ring_->end(current_.end, current_.cpu);
  spans_.push_back(current_);
}

void SpanRecorder::add(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request) {
  const auto number = std::int64_t{request.slot} << 32 | request.generation;
  requests_.push_back({clock_.now(), caller.value(), number, kind});
  if (ring_ != nullptr) ring_->add(requests_.back());
}

std::vector<schedule::Span> SpanRecorder::take() { return std::exchange(spans_, {}); }

}  // namespace smp::server
