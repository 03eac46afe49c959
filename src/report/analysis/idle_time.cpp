// report/analysis/idle_time.cpp: gap by gap, the message that ended it.
#include "report/analysis/idle_time.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"

namespace smp::report {
namespace {

using base::Nanoseconds;
using schedule::Phase;
using schedule::Span;
using schedule::StepTrace;

/// The most time by which a span's start may be noted before the request that it runs.
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
    found.whole = with_time_before(timeline_);
    gaps_.resize(timeline_.ranks.size());
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      found.ranks.push_back(times_of(rank, found.whole));
    }
    tell_imbalance(found);
    found.gaps = std::move(gaps_);
    for (auto& [who, time] : awaited_) {
      found.awaited.push_back({std::get<0>(who), std::get<1>(who), std::get<2>(who), time});
    }
    std::stable_sort(found.awaited.begin(), found.awaited.end(),
                     [](const auto& a, const auto& b) { return a.time > b.time; });
    return found;
  }

 private:
  RankTimes times_of(std::size_t rank, const TimeInterval& whole) {
    const auto& trace = timeline_.ranks[rank];
    const auto& spans = trace.spans;
    RankTimes times;
    times.busy = trace.busy_wall();
    if (trace.oversubscribed)
      times.without_core = std::max<Nanoseconds>(0, times.busy - trace.busy_cpu());
    const auto begin = look_before(rank, whole.start, times);
    const auto first = spans.empty() ? whole.end : spans.front().start;
    times.filling = add_gap(rank, {{begin, first}, IdleGap::Kind::kFilling});
    find_late_callers({begin, first}, rank);
    for (std::size_t i = 1; i < spans.size(); ++i) {
      explain({spans[i - 1].end, spans[i].start}, rank, times);
    }
    if (spans.empty()) return times;
    times.draining += add_gap(rank, {{spans.back().end, whole.end}, IdleGap::Kind::kDraining});
    return times;
  }

  /// Notes a gap of the rank, if it has any length. @return its length
  Nanoseconds add_gap(std::size_t rank, IdleGap&& gap) {
    const auto length = gap.time.length();
    if (length > 0) gaps_[rank].push_back(std::move(gap));
    return length;
  }

  /// Sorts the time of the rank from `time` until its step began into `times`.
  /// @return when its step began
  Nanoseconds look_before(std::size_t rank, Nanoseconds time, RankTimes& times) {
    const auto& trace = timeline_.ranks[rank];
    if (trace.between.empty()) {
      const auto begin = whole_step(timeline_).start;
      times.other += add_gap(rank, {{time, begin}});
      return begin;
    }
    const auto began = trace.between.front().start;
    times.draining += add_gap(rank, {{time, began}, IdleGap::Kind::kDraining});  // one step before
    time = began;
    for (const Span& span : trace.between) {
      auto& sum = span.phase == Phase::kOptimizer ? times.optimizer
                  : span.phase == Phase::kHost    ? times.host
                                                  : times.library;
      sum += span.end - span.start;
      times.other += add_gap(rank, {{time, span.start}});
      time = span.end;
    }
    return time;
  }

  /// Moves idle time of each rank to `imbalance`, out of the classes that even a perfect schedule
  /// would have. Time for transport and other reasons stays: it comes from messages, not the plan.
  void tell_imbalance(IdleTime& found) const {
    const auto busy = work_of_ranks();
    const auto most = busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
    const auto step = whole_step(timeline_);
    for (std::size_t rank = 0; rank < busy.size(); ++rank) {
      auto& times = found.ranks[rank];
      const auto& spans = timeline_.ranks[rank].spans;
      auto missing = most - busy[rank];
      const auto take = [&](Nanoseconds& time, Nanoseconds limit) {
        const auto taken = std::clamp<Nanoseconds>(missing, 0, std::max<Nanoseconds>(0, limit));
        time -= taken;
        times.imbalance += taken;
        missing -= taken;
      };
      take(times.for_work, times.for_work);
      take(times.filling, times.filling);
      // What the rank drained in the step before comes of that one.
      if (!spans.empty()) take(times.draining, step.end - spans.back().end);
    }
  }

  /// Returns the busy time of every rank as the bubble counts it: processor time if ranks share
  /// cores, else wall-clock time.
  std::vector<Nanoseconds> work_of_ranks() const {
    const auto& ranks = timeline_.ranks;
    const bool shared = std::any_of(ranks.begin(), ranks.end(),
                                    [](const auto& rank) { return rank.oversubscribed; });
    std::vector<Nanoseconds> work;
    for (const auto& rank : ranks) work.push_back(shared ? rank.busy_cpu() : rank.busy_wall());
    return work;
  }

  /// Notes the work that the rank awaited while the pipeline filled: another rank's step may not
  /// have begun by then.
  void find_late_callers(const TimeInterval& filling, std::size_t rank) {
    if (const Arrow* const cause = last_arrow(filling, rank)) {
      attribute({filling.start, std::min(cause->start, filling.end)}, rank, cause->from,
                timeline_.ranks[cause->from].between);
    }
  }

  void explain(const TimeInterval& gap, std::size_t rank, RankTimes& times) {
    if (gap.length() <= 0) return;
    const Arrow* const cause = last_arrow(gap, rank);
    if (cause == nullptr) {
      times.other += add_gap(rank, {gap});
      return;
    }
    const auto from = cause->from;
    const auto sent = std::clamp(cause->start, gap.start, gap.end);
    const auto came = std::clamp(cause->end, sent, gap.end);
    auto work = attribute({gap.start, sent}, rank, from, timeline_.ranks[from].spans);
    times.for_work +=
        add_gap(rank, {{gap.start, sent}, IdleGap::Kind::kForWork, from, std::move(work)});
    times.transport += add_gap(rank, {{sent, came}, IdleGap::Kind::kTransport, from});
    times.other += add_gap(rank, {{came, gap.end}});
  }

  const Arrow* last_arrow(const TimeInterval& gap, std::size_t rank) const {
    const auto& arrows = arrows_to_[rank];
    const auto next = std::partition_point(arrows.begin(), arrows.end(), [&](const Arrow* arrow) {
      return arrow->end <= gap.end + kSlack;
    });
    if (next == arrows.begin() || (*(next - 1))->end < gap.start) return nullptr;
    return *(next - 1);
  }

  /// Attributes the time in which `rank` waited to the work that `awaited` did in it (`spans`).
  /// @return the work that took longest; empty if there was none
  std::string attribute(const TimeInterval& time, std::size_t rank, std::size_t awaited,
                        const std::vector<Span>& spans) {
    const Span* longest = nullptr;
    Nanoseconds most = 0;
    auto span = std::partition_point(spans.begin(), spans.end(),
                                     [&](const Span& own) { return own.end <= time.start; });
    for (; span != spans.end() && span->start < time.end; ++span) {
      const auto length = std::min(span->end, time.end) - std::max(span->start, time.start);
      awaited_[{rank, awaited, work_name(timeline_, *span)}] += length;
      if (length <= most) continue;
      most = length;
      longest = &*span;
    }
    return longest == nullptr ? std::string() : work_name(timeline_, *longest);
  }

  const StepTimeline& timeline_;
  std::vector<std::vector<const Arrow*>> arrows_to_;  // in order of their ends
  std::map<std::tuple<std::size_t, std::size_t, std::string>, Nanoseconds> awaited_;
  std::vector<std::vector<IdleGap>> gaps_;  // of each rank
};

}  // namespace

IdleTime idle_time(const StepTimeline& timeline, const std::vector<Arrow>& arrows) {
  return Gaps(timeline, arrows).look();
}

std::string work_name(const StepTimeline& timeline, const Span& span) {
  const std::string between = name_between_steps(span.phase);
  if (!between.empty()) return between;
  const auto module = module_name(timeline, span.module);
  return span.module < 0 ? module : base::concat(phase_name(span.phase), " of ", module);
}

}  // namespace smp::report
