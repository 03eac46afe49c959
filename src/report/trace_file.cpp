// report/trace_file.cpp: one line per span: [start, end, processor time, microbatch, module,
// phase]; and per event of a request: [time, caller, request, kind].
#include "report/trace_file.h"

#include <algorithm>

#include "base/check.h"
#include "base/json.h"

namespace smp::report {
namespace {

using base::concat;
using base::Json;
using base::json_member;
using base::Nanoseconds;
using schedule::Phase;
using schedule::RequestEvent;
using schedule::Span;
using schedule::StepTrace;

constexpr const char* kFormat = "smp-trace";
constexpr int kVersion = 1;
constexpr std::size_t kSpanNumbers = 6, kEventNumbers = 4;

std::string rank_to_json(const StepTrace& rank, Nanoseconds origin) {
  std::string text =
      concat("    {\"pp_rank\": ", rank.pp_rank, ", \"step\": ", rank.step,
             ", \"start\": ", rank.start - origin, ", \"end\": ", rank.end - origin,
             ", \"oversubscribed\": ", rank.oversubscribed ? "true" : "false", ", \"spans\": [");
  for (const Span& span : rank.spans) {
    text += concat(&span == &rank.spans.front() ? "\n" : ",\n", "      [", span.start - origin, ",",
                   span.end - origin, ",", span.cpu, ",", span.microbatch, ",", span.module, ",",
                   static_cast<int>(span.phase), "]");
  }
  text += "]";
  if (!rank.requests.empty()) text += ", \"requests\": [";
  for (const RequestEvent& event : rank.requests) {
    text += concat(&event == &rank.requests.front() ? "\n" : ",\n", "      [", event.time - origin,
                   ",", event.caller, ",", event.request, ",", static_cast<int>(event.kind), "]");
  }
  return text + (rank.requests.empty() ? "}" : "]}");
}

bool are_integers(const Json& numbers, std::size_t count) {
  return numbers.is_array() && numbers.size() == count &&
         std::all_of(numbers.begin(), numbers.end(),
                     [](const Json& number) { return number.is_number_integer(); });
}

RequestEvent event_from_json(const Json& numbers, const std::string& name) {
  using Kind = RequestEvent::Kind;
  const bool right = are_integers(numbers, kEventNumbers) && numbers[3] >= 0 &&
                     numbers[3] <= static_cast<int>(Kind::kReceived);
  SMP_REQUIRE(right, name, ": an event of a request must be ", kEventNumbers, " integers, found ",
              numbers.dump());
  return {numbers[0], numbers[1], numbers[2], static_cast<Kind>(numbers[3].get<int>())};
}

Span span_from_json(const Json& numbers, const std::string& name) {
  const bool right = are_integers(numbers, kSpanNumbers) && numbers[5] >= 0 &&
                     numbers[5] <= static_cast<int>(Phase::kWeightGradient);
  SMP_REQUIRE(right, name, ": a span must be ", kSpanNumbers, " integers, found ", numbers.dump());
  Span span;
  span.start = numbers[0];
  span.end = numbers[1];
  span.cpu = numbers[2];
  span.microbatch = numbers[3];
  span.module = numbers[4];
  span.phase = static_cast<Phase>(numbers[5].get<int>());
  return span;
}

StepTrace rank_from_json(const Json& json, const std::string& name) {
  StepTrace rank;
  rank.pp_rank = json_member<int>(json, "pp_rank", name);
  rank.step = json_member<std::int64_t>(json, "step", name);
  rank.start = json_member<Nanoseconds>(json, "start", name);
  rank.end = json_member<Nanoseconds>(json, "end", name);
  rank.oversubscribed = json_member<bool>(json, "oversubscribed", name);
  for (const Json& span : json_member<Json>(json, "spans", name)) {
    rank.spans.push_back(span_from_json(span, name));
  }
  if (!json.contains("requests")) return rank;  // simulated, or of an older version
  for (const Json& event : json["requests"]) {
    rank.requests.push_back(event_from_json(event, name));
  }
  return rank;
}

}  // namespace

std::string trace_to_json(const StepTimeline& timeline, const std::string& step) {
  Nanoseconds origin = timeline.ranks.empty() ? 0 : timeline.ranks.front().start;
  for (const StepTrace& rank : timeline.ranks) origin = std::min(origin, rank.start);
  std::string text = concat(
      "{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion,
      timeline.simulated ? ",\n  \"simulated\": true" : "",
      timeline.clock_error == 0 ? "" : concat(",\n  \"clock_error\": ", timeline.clock_error),
      timeline.unfinished ? ",\n  \"unfinished\": true" : "",
      ",\n  \"modules\": ", Json(timeline.module_paths).dump(), ",\n  \"ranks\": [\n");
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
  for (const Json& rank : json_member<Json>(json, "ranks", name)) {
    timeline.ranks.push_back(rank_from_json(rank, name));
  }
  return timeline;
}

}  // namespace smp::report
