// simulate/device_profile.cpp: one factor a device.
#include "simulate/device_profile.h"

#include <utility>

#include "base/check.h"

namespace smp::simulate {
namespace {

template <class Visit>
void each_interval(const Trace& trace, const Visit& visit) {
  for (int call = -1; call < static_cast<int>(trace.calls.size()); ++call) {
    if (call >= 0) visit(IntervalId{call, true});
    visit(IntervalId{call, false});
  }
}

double traced_seconds(const Trace& trace) {
  double sum = 0;
  each_interval(trace, [&](const IntervalId& id) {
    const auto times = trace.times_of(trace.interval(id));
    sum += times.forward + times.backward;
  });
  return sum;
}

}  // namespace

DeviceProfile profile_of(const Trace& trace, std::string device,
                         std::vector<IntervalTimes> seconds) {
  SMP_ASSERT(seconds.size() == trace.num_intervals());
  each_interval(trace, [&](const IntervalId& id) {
    if (trace.interval(id).backward_seconds >= 0) return;
    auto& times = seconds[Trace::index_of(id)];
    times.backward = times.forward * trace.backward_ratio;
    times.weights = times.backward * trace.weight_share;
  });
  double sum = 0;
  for (const IntervalTimes& times : seconds) sum += times.forward + times.backward;
  const double traced = traced_seconds(trace);
  DeviceProfile profile{std::move(device), 1, std::move(seconds)};
  if (sum > 0 && traced > 0) profile.speed = traced / sum;
  for (IntervalTimes& times : profile.times) {
    times.forward *= profile.speed;
    times.backward *= profile.speed;
    times.weights *= profile.speed;
  }
  return profile;
}

void take_device_speeds(Machine& machine, const Trace& trace) {
  if (trace.profiles.empty() || machine.devices.empty()) return;
  if (machine.speeds.empty()) machine.speeds.assign(machine.devices.size(), 1.0);
  for (std::size_t stage = 0; stage < machine.devices.size(); ++stage) {
    const auto* profile = trace.find_profile(machine.devices[stage]);
    if (profile != nullptr) machine.speeds[stage] *= profile->speed;
  }
}

}  // namespace smp::simulate
