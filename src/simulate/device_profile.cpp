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

ComputeInterval& interval_of(Trace& trace, const IntervalId& id) {
  if (id.call < 0) return trace.body_after;
  auto& call = trace.calls[static_cast<std::size_t>(id.call)];
  return id.before ? call.before : call.after;
}

/// Sets the speed and scales the times, so that the seconds they stand for stay the same.
void set_speed(DeviceProfile& profile, double speed) {
  const double factor = speed / profile.speed;
  for (IntervalTimes& times : profile.times) {
    times.forward *= factor;
    times.backward *= factor;
    times.weights *= factor;
  }
  profile.speed = speed;
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
  if (sum > 0 && traced > 0) set_speed(profile, traced / sum);
  return profile;
}

void add_times(Trace& trace, const std::vector<IntervalTimes>& seconds) {
  SMP_ASSERT(seconds.size() == trace.num_intervals());
  each_interval(trace, [&](const IntervalId& id) {
    const auto& more = seconds[Trace::index_of(id)];
    if (more.forward == 0 && more.backward == 0) return;
    auto& own = interval_of(trace, id);
    const auto times = trace.times_of(own);  // its backward may be known by a ratio only
    own.seconds = times.forward + more.forward;
    own.backward_seconds = times.backward + more.backward;
    own.weight_seconds = times.weights + more.weights;
    for (auto& profile : trace.profiles) {
      auto& there = profile.times[Trace::index_of(id)];
      there.forward += more.forward * profile.speed;
      there.backward += more.backward * profile.speed;
      there.weights += more.weights * profile.speed;
    }
  });
}

void share_device_speeds(Trace& trace) {
  for (std::size_t d = 0; d < trace.profiles.size(); ++d) {
    std::vector<DeviceProfile*> same{&trace.profiles[d]};
    for (Trace& other : trace.others) same.push_back(&other.profiles.at(d));
    double work = 0, seconds = 0;
    for (std::size_t i = 0; i < same.size(); ++i) {
      const double own = traced_seconds(trace.of_microbatch(i));
      work += own;
      seconds += own / same[i]->speed;
    }
    if (seconds > 0) {
      for (DeviceProfile* profile : same) set_speed(*profile, work / seconds);
    }
  }
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
