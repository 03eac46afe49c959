// schedule/step_trace.cpp: what adds up from spans.
#include "schedule/step_trace.h"

#include <algorithm>

namespace smp::schedule {
namespace {

base::Nanoseconds busy(const StepTrace& trace, bool cpu) {
  return cpu ? trace.busy_cpu() : trace.busy_wall();
}

}  // namespace

base::Nanoseconds StepTrace::busy_wall() const {
  base::Nanoseconds sum = 0;
  for (const Span& span : spans) sum += span.end - span.start;
  return sum;
}

base::Nanoseconds StepTrace::busy_cpu() const {
  base::Nanoseconds sum = 0;
  for (const Span& span : spans) sum += span.cpu;
  return sum;
}

double bubble(const std::vector<StepTrace>& ranks) {
  if (ranks.empty()) return 0;
  const bool oversubscribed = std::any_of(
      ranks.begin(), ranks.end(), [](const StepTrace& rank) { return rank.oversubscribed; });
  base::Nanoseconds start = ranks.front().start;
  base::Nanoseconds end = ranks.front().end;
  base::Nanoseconds sum = 0;
  for (const StepTrace& rank : ranks) {
    start = std::min(start, rank.start);
    end = std::max(end, rank.end);
    sum += busy(rank, oversubscribed);
  }
  const auto available = static_cast<double>(end - start) * static_cast<double>(ranks.size());
  return available <= 0 ? 0 : 1 - static_cast<double>(sum) / available;
}

}  // namespace smp::schedule
