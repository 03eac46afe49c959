// server/span_recorder.cpp: at most one span is open.
#include "server/span_recorder.h"

#include <utility>

namespace smp::server {

void SpanRecorder::begin(std::int32_t microbatch, std::int32_t module,
                         schedule::Phase phase) noexcept {
  if (!enabled_) return;
  if (open_) end();
  open_ = true;
  current_ = {clock_.now(), 0, base::thread_cpu_time(), microbatch, module, phase};
  if (ring_ != nullptr) ring_->begin(current_);
}

void SpanRecorder::end() noexcept {
  if (!open_) return;
  open_ = false;
  current_.end = clock_.now();
  current_.cpu = base::thread_cpu_time() - current_.cpu;
  if (ring_ != nullptr) ring_->end(current_.end, current_.cpu);
  spans_.push_back(current_);
}

void SpanRecorder::add(schedule::RequestEvent::Kind kind, PpRank caller, RequestId request) {
  const auto number = std::int64_t{request.slot} << 32 | request.generation;
  requests_.push_back({clock_.now(), caller.value(), number, kind});
  if (ring_ != nullptr) ring_->add(requests_.back());
}

std::vector<schedule::RequestEvent> SpanRecorder::take_requests() {
  return std::exchange(requests_, {});
}

std::vector<schedule::Span> SpanRecorder::take() { return std::exchange(spans_, {}); }

}  // namespace smp::server
