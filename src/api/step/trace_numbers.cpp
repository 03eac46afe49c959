// api/step/trace_numbers.cpp: how many spans, their numbers, the same of those before the step,
// events.
#include "api/step/trace_numbers.h"

#include <cstddef>

namespace smp {
namespace {

using base::Nanoseconds;
using schedule::Span;
using schedule::StepTrace;

/// The count of numbers that a span, and an event of a request, take on their way to rank 0.
constexpr std::size_t kSpanNumbers = 6, kEventNumbers = 4;

void add_spans(Numbers& numbers, const std::vector<Span>& spans) {
  numbers.push_back(static_cast<std::int64_t>(spans.size()));
  for (const Span& span : spans) {
    numbers.insert(numbers.end(), {span.start, span.end, span.cpu, span.microbatch, span.module,
                                   static_cast<std::int64_t>(span.phase)});
  }
}

/// Reads the spans at `at`.
/// @param at  place of their count in `numbers`; afterwards of what follows them
std::vector<Span> take_spans(const Numbers& numbers, std::size_t& at) {
  std::vector<Span> spans;
  for (auto left = numbers.at(at++); left > 0; --left, at += kSpanNumbers) {
    spans.push_back({numbers.at(at), numbers.at(at + 1), numbers.at(at + 2),
                     static_cast<std::int32_t>(numbers.at(at + 3)),
                     static_cast<std::int32_t>(numbers.at(at + 4)),
                     static_cast<schedule::Phase>(numbers.at(at + 5))});
  }
  return spans;
}

}  // namespace

Numbers to_numbers(const StepTrace& trace) {
  Numbers numbers = {trace.pp_rank, trace.step, trace.start, trace.end, trace.oversubscribed};
  add_spans(numbers, trace.spans);
  add_spans(numbers, trace.between);
  for (const auto& event : trace.requests) {
    numbers.insert(numbers.end(), {event.time, event.caller, event.request,
                                   static_cast<std::int64_t>(event.kind)});
  }
  return numbers;
}

StepTrace to_trace(const Numbers& numbers) {
  StepTrace trace;
  trace.pp_rank = static_cast<int>(numbers.at(0));
  trace.step = numbers.at(1);
  trace.start = numbers.at(2);
  trace.end = numbers.at(3);
  trace.oversubscribed = numbers.at(4) != 0;
  std::size_t at = 5;
  trace.spans = take_spans(numbers, at);
  trace.between = take_spans(numbers, at);
  for (; at < numbers.size(); at += kEventNumbers) {
    trace.requests.push_back({numbers.at(at), static_cast<std::int32_t>(numbers.at(at + 1)),
                              numbers.at(at + 2),
                              static_cast<schedule::RequestEvent::Kind>(numbers.at(at + 3))});
  }
  return trace;
}

StepTrace moved_back(StepTrace trace, Nanoseconds offset) {
  for (auto* time : {&trace.start, &trace.end}) *time -= offset;
  for (auto* spans : {&trace.spans, &trace.between}) {
    for (Span& span : *spans) {
      span.start -= offset;
      span.end -= offset;
    }
  }
  for (auto& event : trace.requests) event.time -= offset;
  return trace;
}

}  // namespace smp
