// report/idle_time.cpp: gap by gap, the message that ended it.
#include "report/idle_time.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"

namespace smp::report {
namespace {

using base::Nanoseconds;
using schedule::Span;
using schedule::StepTrace;

/// A span is noted a moment before the request that it runs.
constexpr Nanoseconds kSlack = 20 * base::kMicrosecond;

class Gaps {
 public:
  Gaps(const StepTimeline& timeline, const std::vector<Arrow>& arrows) : timeline_(timeline) {
    arrows_to_.resize(timeline.ranks.size());
    for (const Arrow& arrow : arrows) {
      if (arrow.from != arrow.to) arrows_to_[arrow.to].push_back(&arrow);
    }
  }

  IdleTime look() {
    IdleTime found;
    const auto step = whole_step(timeline_);
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      found.ranks.push_back(times_of(rank, step));
    }
    for (auto& [who, time] : awaited_) {
      found.awaited.push_back({std::get<0>(who), std::get<1>(who), std::get<2>(who), time});
    }
    std::stable_sort(found.awaited.begin(), found.awaited.end(),
                     [](const auto& a, const auto& b) { return a.time > b.time; });
    return found;
  }

 private:
  RankTimes times_of(std::size_t rank, const TimeInterval& step) {
    const auto& trace = timeline_.ranks[rank];
    const auto& spans = trace.spans;
    RankTimes times;
    times.busy = trace.busy_wall();
    if (trace.oversubscribed)
      times.without_core = std::max<Nanoseconds>(0, times.busy - trace.busy_cpu());
    times.filling = spans.empty() ? step.length() : spans.front().start - step.start;
    times.draining = spans.empty() ? 0 : step.end - spans.back().end;
    for (std::size_t i = 1; i < spans.size(); ++i) {
      explain({spans[i - 1].end, spans[i].start}, rank, times);
    }
    return times;
  }

  void explain(const TimeInterval& gap, std::size_t rank, RankTimes& times) {
    if (gap.length() <= 0) return;
    const Arrow* const cause = last_arrow(gap, rank);
    if (cause == nullptr) {
      times.other += gap.length();
      return;
    }
    const auto sent = std::clamp(cause->start, gap.start, gap.end);
    const auto came = std::clamp(cause->end, sent, gap.end);
    times.for_work += sent - gap.start;
    times.transport += came - sent;
    times.other += gap.end - came;
    attribute({gap.start, sent}, rank, cause->from);
  }

  const Arrow* last_arrow(const TimeInterval& gap, std::size_t rank) const {
    const auto& arrows = arrows_to_[rank];
    const auto next = std::partition_point(arrows.begin(), arrows.end(), [&](const Arrow* arrow) {
      return arrow->end <= gap.end + kSlack;
    });
    if (next == arrows.begin() || (*(next - 1))->end < gap.start) return nullptr;
    return *(next - 1);
  }

  /// To what `awaited` computed in that time.
  void attribute(const TimeInterval& time, std::size_t rank, std::size_t awaited) {
    const auto& spans = timeline_.ranks[awaited].spans;
    auto span = std::partition_point(spans.begin(), spans.end(),
                                     [&](const Span& own) { return own.end <= time.start; });
    for (; span != spans.end() && span->start < time.end; ++span) {
      const auto length = std::min(span->end, time.end) - std::max(span->start, time.start);
      awaited_[{rank, awaited, work_name(timeline_, *span)}] += length;
    }
  }

  const StepTimeline& timeline_;
  std::vector<std::vector<const Arrow*>> arrows_to_;  // in order of their ends
  std::map<std::tuple<std::size_t, std::size_t, std::string>, Nanoseconds> awaited_;
};

}  // namespace

IdleTime idle_time(const StepTimeline& timeline, const std::vector<Arrow>& arrows) {
  return Gaps(timeline, arrows).look();
}

std::string work_name(const StepTimeline& timeline, const Span& span) {
  const auto module = module_name(timeline, span.module);
  return span.module < 0 ? module : base::concat(phase_name(span.phase), " of ", module);
}

}  // namespace smp::report
