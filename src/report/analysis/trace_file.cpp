// report/analysis/trace_file.cpp: one line per span, in the step or between the last one and it:
// [start, end, processor time, microbatch, module, phase]; and per event of a request: [time,
// caller, request, kind].
#include "report/analysis/trace_file.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "config/config_keys.h"
#include "config/json.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::json_as;
using base::json_element;
using base::json_member;
using base::json_text;
using base::Nanoseconds;
using schedule::Phase;
using schedule::RequestEvent;
using schedule::Span;
using schedule::StepTrace;

constexpr const char* kFormat = "smp-trace";
constexpr int kVersion = 1;
constexpr std::size_t kSpanNumbers = 6, kEventNumbers = 4;

std::string spans_to_json(const std::vector<Span>& spans, Nanoseconds origin) {
  std::string text = "[";
  for (const Span& span : spans) {
    text += concat(&span == &spans.front() ? "\n" : ",\n", "      [", span.start - origin, ",",
                   span.end - origin, ",", span.cpu, ",", span.microbatch, ",", span.module, ",",
                   static_cast<int>(span.phase), "]");
  }
  return text + "]";
}

std::string rank_to_json(const StepTrace& rank, Nanoseconds origin) {
  std::string text = concat("    {\"pp_rank\": ", rank.pp_rank, ", \"step\": ", rank.step,
                            ", \"start\": ", rank.start - origin, ", \"end\": ", rank.end - origin,
                            ", \"oversubscribed\": ", rank.oversubscribed ? "true" : "false",
                            ", \"spans\": ", spans_to_json(rank.spans, origin));
  if (!rank.between.empty()) text += ", \"between\": " + spans_to_json(rank.between, origin);
  if (!rank.requests.empty()) text += ", \"requests\": [";
  for (const RequestEvent& event : rank.requests) {
    text += concat(&event == &rank.requests.front() ? "\n" : ",\n", "      [", event.time - origin,
                   ",", event.caller, ",", event.request, ",", static_cast<int>(event.kind), "]");
  }
  return text + (rank.requests.empty() ? "}" : "]}");
}

/// Requires an array of `count` integers. @throws UsageError
/// @param what  a name for the message, such as "a span"
void require_integers(const Json& numbers, std::size_t count, const char* what,
                      const std::string& name) {
  const auto integers = json_as<std::vector<std::int64_t>>(numbers);
  SMP_REQUIRE(integers && integers->size() == count, name, ": ", what, " must be ", count,
              " integers, found ", base::excerpt(json_text(numbers)));
}

RequestEvent event_from_json(const Json& numbers, const std::string& name) {
  using Kind = RequestEvent::Kind;
  require_integers(numbers, kEventNumbers, "an event of a request", name);
  const auto kind = json_element<int>(numbers, 3, name);
  SMP_REQUIRE(kind >= 0 && kind <= static_cast<int>(Kind::kTook), name, ": ", kind,
              " is no kind of event");
  return {json_element<Nanoseconds>(numbers, 0, name), json_element<std::int32_t>(numbers, 1, name),
          json_element<std::int64_t>(numbers, 2, name), static_cast<Kind>(kind)};
}

Span span_from_json(const Json& numbers, const std::string& name) {
  require_integers(numbers, kSpanNumbers, "a span", name);
  Span span;
  span.start = json_element<Nanoseconds>(numbers, 0, name);
  span.end = json_element<Nanoseconds>(numbers, 1, name);
  span.cpu = json_element<Nanoseconds>(numbers, 2, name);
  span.microbatch = json_element<std::int32_t>(numbers, 3, name);
  span.module = json_element<std::int32_t>(numbers, 4, name);
  const auto phase = json_element<std::uint8_t>(numbers, 5, name);
  span.phase = static_cast<Phase>(phase);
  return span;
}

StepTrace rank_from_json(const Json& json, const std::string& name) {
  StepTrace rank;
  rank.pp_rank = json_member<int>(json, "pp_rank", name);
  rank.step = json_member<std::int64_t>(json, "step", name);
  rank.start = json_member<Nanoseconds>(json, "start", name);
  rank.end = json_member<Nanoseconds>(json, "end", name);
  rank.oversubscribed = json_member<bool>(json, "oversubscribed", name);
  for (const Json& span : json_member<std::vector<Json>>(json, "spans", name)) {
    rank.spans.push_back(span_from_json(span, name));
  }
  if (json.contains("between")) {  // not of an older version
    for (const Json& span : json_member<std::vector<Json>>(json, "between", name)) {
      rank.between.push_back(span_from_json(span, name));
    }
  }
  if (!json.contains("requests")) return rank;  // simulated, or of an older version
  for (const Json& event : json_member<std::vector<Json>>(json, "requests", name)) {
    rank.requests.push_back(event_from_json(event, name));
  }
  return rank;
}

// No step is longer; and sums of a step's times are numbers as well.
constexpr Nanoseconds kLongestStep = Nanoseconds{1} << 47;  // 39 hours

void require_near(Nanoseconds time, Nanoseconds start, const char* what, const std::string& name) {
  const double distance = static_cast<double>(time) - static_cast<double>(start);
  SMP_REQUIRE(std::abs(distance) <= static_cast<double>(kLongestStep), name, ": ", what, " is ",
              distance / 1e9, " s away from the start of the step; is the file damaged?");
}

void require_sense(const Span& span, Nanoseconds start, const std::string& name) {
  require_near(span.start, start, "a span", name);
  require_near(span.end, start, "the end of a span", name);
  require_near(span.cpu, 0, "the processor time of a span", name);
  SMP_REQUIRE(span.microbatch >= -1 && span.microbatch < base::kMostMicrobatches, name,
              ": a span is of microbatch ", span.microbatch, ", at most ", base::kMostMicrobatches,
              " are read");
  SMP_REQUIRE(span.phase <= Phase::kHost, name, ": ", static_cast<int>(span.phase),
              " is no phase of a span");
}

void require_sense(const StepTrace& rank, Nanoseconds start, const std::string& name) {
  SMP_REQUIRE(rank.pp_rank >= 0 && rank.pp_rank < base::kMostStages, name, ": there is a rank ",
              rank.pp_rank, ", expected at least 0 and less than ", base::kMostStages);
  require_near(rank.start, start, "the start of a rank", name);
  require_near(rank.end, start, "the end of a rank", name);
  for (const auto* spans : {&rank.spans, &rank.between}) {
    for (const Span& span : *spans) require_sense(span, start, name);
  }
  for (const RequestEvent& event : rank.requests) {
    require_near(event.time, start, "an event of a request", name);
  }
}

}  // namespace

void require_sense(const StepTimeline& timeline, const std::string& name) {
  require_near(timeline.clock_error, 0, "\"clock_error\"", name);
  for (const StepTrace& rank : timeline.ranks) {
    require_sense(rank, timeline.ranks.front().start, name);
  }
}

std::string trace_to_json(const StepTimeline& timeline, const std::string& step) {
  Nanoseconds origin = timeline.ranks.empty() ? 0 : timeline.ranks.front().start;
  for (const StepTrace& rank : timeline.ranks) origin = std::min(origin, rank.start);
  std::string text = concat(
      "{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion,
      timeline.simulated ? ",\n  \"simulated\": true" : "",
      timeline.clock_error == 0 ? "" : concat(",\n  \"clock_error\": ", timeline.clock_error),
      timeline.unfinished ? ",\n  \"unfinished\": true" : "",
      ",\n  \"modules\": ", json_text(timeline.module_paths), ",\n  \"ranks\": [\n");
  for (const StepTrace& rank : timeline.ranks) {
    text += rank_to_json(rank, origin) + (&rank == &timeline.ranks.back() ? "\n" : ",\n");
  }
  const auto member = step.empty() ? std::string() : concat(",\n  \"", kStepMember, "\": ", step);
  return text + "  ]" + member + "\n}\n";
}

StepTimeline trace_from_json(const std::string& text, const std::string& name) {
  const Json json = base::parse_json(text, name);
  SMP_REQUIRE(json_member<std::string>(json, "format", name) == kFormat, name,
              ": \"format\" is not \"", kFormat, "\"; this is not a trace");
  const int version = json_member<int>(json, "version", name);
  SMP_REQUIRE(version == kVersion, name, ": written in version ", version,
              " of the format, this build reads version ", kVersion);
  StepTimeline timeline;
  timeline.module_paths = json_member<std::vector<std::string>>(json, "modules", name);
  if (json.contains("simulated")) timeline.simulated = json_member<bool>(json, "simulated", name);
  if (json.contains("clock_error")) {
    timeline.clock_error = json_member<Nanoseconds>(json, "clock_error", name);
  }
  if (json.contains("unfinished")) {
    timeline.unfinished = json_member<bool>(json, "unfinished", name);
  }
  for (const Json& rank : json_member<std::vector<Json>>(json, "ranks", name)) {
    timeline.ranks.push_back(rank_from_json(rank, name));
  }
  require_sense(timeline, name);
  return timeline;
}

}  // namespace smp::report
