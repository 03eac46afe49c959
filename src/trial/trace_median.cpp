// trial/trace_median.cpp: element by element, since one late interrupt hits one call.
#include "trial/trace_median.h"

#include <algorithm>

namespace smp::partitioning {
namespace {

bool same_calls(const simulate::Trace& a, const simulate::Trace& b) {
  return std::equal(a.calls.begin(), a.calls.end(), b.calls.begin(), b.calls.end(),
                    [](const simulate::TracedCall& x, const simulate::TracedCall& y) {
                      return x.module == y.module && x.caller == y.caller;
                    });
}

template <class Value>
double median(const std::vector<const simulate::Trace*>& traces, const Value& value) {
  std::vector<double> values;
  for (const simulate::Trace* trace : traces) values.push_back(value(*trace));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Sets the time of an interval to the `clock` seconds that were measured, and scales the times of
/// its backward, which were estimated from operators, by the same factor.
void set_time(simulate::ComputeInterval& interval, double clock) {
  const bool without_operators = interval.seconds == 0 && interval.activation_bytes == 0;
  if (without_operators && clock < kCallItself) return;
  const double factor = interval.seconds > 0 ? clock / interval.seconds : 0;
  const bool known = factor > 0 && interval.backward_seconds >= 0;
  interval.backward_seconds = known ? factor * interval.backward_seconds : -1;
  interval.weight_seconds *= factor;
  interval.product_seconds *= factor;
  interval.seconds = clock;
}

}  // namespace

simulate::Trace with_median_times(simulate::Trace sizes,
                                  const std::vector<simulate::Trace>& timed) {
  std::vector<const simulate::Trace*> alike;
  for (const simulate::Trace& trace : timed) {
    if (same_calls(sizes, trace)) alike.push_back(&trace);
  }
  if (alike.empty()) return sizes;
  for (std::size_t i = 0; i < sizes.calls.size(); ++i) {
    simulate::TracedCall& call = sizes.calls[i];
    set_time(call.before, median(alike, [&](auto& t) { return t.calls[i].before.seconds; }));
    set_time(call.after, median(alike, [&](auto& t) { return t.calls[i].after.seconds; }));
  }
  set_time(sizes.body_after, median(alike, [](auto& t) { return t.body_after.seconds; }));
  sizes.source = simulate::CostSource::kMeasured;
  return sizes;
}

}  // namespace smp::partitioning
