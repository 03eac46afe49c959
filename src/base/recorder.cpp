// base/recorder.cpp: spans and what adds up from them.
#include "base/recorder.h"

#include <algorithm>
#include <utility>

namespace smp::base {
namespace {

Nanoseconds busy(const StepTrace& trace, bool cpu) {
  return cpu ? trace.busy_cpu() : trace.busy_wall();
}

}  // namespace

Nanoseconds StepTrace::busy_wall() const {
  Nanoseconds sum = 0;
  for (const Span& span : spans) sum += span.end - span.start;
  return sum;
}

Nanoseconds StepTrace::busy_cpu() const {
  Nanoseconds sum = 0;
  for (const Span& span : spans) sum += span.cpu;
  return sum;
}

double bubble(const std::vector<StepTrace>& ranks) {
  if (ranks.empty()) return 0;
  const bool oversubscribed = std::any_of(
      ranks.begin(), ranks.end(), [](const StepTrace& rank) { return rank.oversubscribed; });
  Nanoseconds start = ranks.front().start;
  Nanoseconds end = ranks.front().end;
  Nanoseconds sum = 0;
  for (const StepTrace& rank : ranks) {
    start = std::min(start, rank.start);
    end = std::max(end, rank.end);
    sum += busy(rank, oversubscribed);
  }
  const auto available = static_cast<double>(end - start) * static_cast<double>(ranks.size());
  return available <= 0 ? 0 : 1 - static_cast<double>(sum) / available;
}

void Recorder::begin(std::int32_t microbatch, std::int32_t module, Phase phase) noexcept {
  if (!enabled_) return;
  if (open_) end();
  open_ = true;
  current_ = {clock_.now(), 0, thread_cpu_time(), microbatch, module, phase};
}

void Recorder::end() noexcept {
  if (!open_) return;
  open_ = false;
  current_.end = clock_.now();
  current_.cpu = thread_cpu_time() - current_.cpu;
  spans_.push_back(current_);
}

std::vector<Span> Recorder::take() { return std::exchange(spans_, {}); }

}  // namespace smp::base
