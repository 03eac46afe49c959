// report/chrome_trace.cpp: an event a line, so that large traces can be cut by hand.
#include "report/chrome_trace.h"

#include "base/check.h"
#include "base/json.h"
#include "report/step_arrows.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::Nanoseconds;
using schedule::Span;

double microseconds(Nanoseconds time) { return static_cast<double>(time) / 1e3; }

Json event_of(const StepTimeline& timeline, int pp_rank, const Span& span, Nanoseconds origin) {
  const std::string between = name_between_steps(span.phase);
  Json arguments = {{"microbatch", span.microbatch}};
  if (!timeline.simulated) arguments["processor_us"] = microseconds(span.cpu);
  return {{"ph", "X"},
          {"pid", pp_rank},
          {"tid", 0},
          {"ts", microseconds(span.start - origin)},
          {"dur", microseconds(span.end - span.start)},
          {"name", between.empty() ? module_name(timeline, span.module) : between},
          {"cat", phase_name(span.phase)},
          {"args", std::move(arguments)}};
}

/// Its two ends. Viewers bind each to the span that it lies in; an answer may come while its rank
/// does nothing, and is bound to the next.
std::string flow_of(const StepTimeline& timeline, const Arrow& arrow, Nanoseconds origin,
                    std::int64_t number) {
  Json start = {{"ph", "s"},
                {"id", number},
                {"pid", timeline.ranks[arrow.from].pp_rank},
                {"tid", 0},
                {"ts", microseconds(arrow.start - origin)},
                {"name", arrow.answer ? "answer" : "request"},
                {"cat", "message"}};
  Json end = start;
  end["ph"] = "f";
  end["pid"] = timeline.ranks[arrow.to].pp_rank;
  end["ts"] = microseconds(arrow.end - origin);
  if (!arrow.answer) end["bp"] = "e";
  return start.dump() + ",\n" + end.dump() + ",\n";
}

}  // namespace

std::string to_chrome_trace(const StepTimeline& timeline) {
  const auto origin = with_time_before(timeline).start;
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (const auto& rank : timeline.ranks) {
    const auto name = concat(timeline.simulated ? "stage " : "rank ", rank.pp_rank);
    const Json process = {
        {"ph", "M"}, {"pid", rank.pp_rank}, {"name", "process_name"}, {"args", {{"name", name}}}};
    text += process.dump() + ",\n";
    for (const auto* spans : {&rank.between, &rank.spans}) {
      for (const auto& span : *spans) {
        text += event_of(timeline, rank.pp_rank, span, origin).dump() + ",\n";
      }
    }
  }
  std::int64_t number = 0;
  for (const Arrow& arrow : arrows_of(timeline)) {
    text += flow_of(timeline, arrow, origin, ++number);
  }
  if (!timeline.ranks.empty()) text.erase(text.size() - 2, 1);  // the last comma
  return text + "]}\n";
}

}  // namespace smp::report
