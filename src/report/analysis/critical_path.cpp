// report/analysis/critical_path.cpp: backwards from the end: a rank computed because it had just
// computed, or because a message came after that.
#include "report/analysis/critical_path.h"

#include <algorithm>

namespace smp::report {
namespace {

using base::Nanoseconds;
using schedule::Span;

class Walk {
 public:
  Walk(const StepTimeline& timeline, const std::vector<Arrow>& arrows) : timeline_(timeline) {
    arrows_to_.resize(timeline.ranks.size());
    for (const Arrow& arrow : arrows) arrows_to_[arrow.to].push_back(&arrow);
    start_ = whole_step(timeline).start;
  }

  std::vector<PathPart> from(std::size_t rank, Nanoseconds time) {
    rank_ = rank;
    time_ = time;
    while (time_ > start_) step();
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  const std::vector<Span>& spans() const { return timeline_.ranks[rank_].spans; }

  /// Finds the part of the path that ends at the present time, and goes back to its start.
  void step() {
    const auto before = time_;
    const auto& own = spans();
    // The first span that begins now or later; what comes before it matters.
    const auto next = std::partition_point(own.begin(), own.end(),
                                           [&](const Span& span) { return span.start < time_; });
    const Span* const last = next == own.begin() ? nullptr : &*(next - 1);
    if (last != nullptr && last->end >= time_) {
      return take(PathPart::Kind::kComputing, last->start,
                  static_cast<std::size_t>(last - own.data()));
    }
    const auto idle_since = last == nullptr ? start_ : last->end;
    if (const Arrow* const cause = cause_between(idle_since, before)) {
      take(PathPart::Kind::kMessage, cause->start, 0);
      rank_ = cause->from;
      return;
    }
    take(PathPart::Kind::kOther, idle_since, 0);
  }

  /// Returns the message that came last while the rank had nothing to do; of several that came at
  /// once, the one that left last. Messages that left before the step do not count.
  const Arrow* cause_between(Nanoseconds idle_since, Nanoseconds now) const {
    const auto& arrows = arrows_to_[rank_];
    auto next = std::partition_point(arrows.begin(), arrows.end(), [now](const Arrow* arrow) {
      return arrow->end <= now + kSlack;
    });
    const Arrow* cause = nullptr;
    while (next != arrows.begin() && (*--next)->end >= idle_since) {
      const Arrow* const arrow = *next;
      if (cause != nullptr && arrow->end < cause->end) break;
      if (arrow->start >= now) continue;
      if (cause == nullptr || arrow->start > cause->start) cause = arrow;
    }
    return cause;
  }

  void take(PathPart::Kind kind, Nanoseconds since, std::size_t span) {
    since = std::max(since, start_);
    path_.push_back({kind, rank_, span, since, time_});
    time_ = since;
  }

  // A span is noted a moment before the request that it runs.
  static constexpr Nanoseconds kSlack = 20 * base::kMicrosecond;

  const StepTimeline& timeline_;
  std::vector<std::vector<const Arrow*>> arrows_to_;  // in order of their ends
  Nanoseconds start_ = 0, time_ = 0;
  std::size_t rank_ = 0;
  std::vector<PathPart> path_;
};

}  // namespace

std::vector<PathPart> critical_path(const StepTimeline& timeline,
                                    const std::vector<Arrow>& arrows) {
  std::size_t last = 0;
  Nanoseconds end = 0;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    for (const Span& span : timeline.ranks[rank].spans) {
      if (span.end <= end) continue;
      end = span.end;
      last = rank;
    }
  }
  if (end == 0) return {};
  return Walk(timeline, arrows).from(last, end);
}

}  // namespace smp::report
