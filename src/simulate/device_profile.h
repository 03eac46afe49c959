// simulate/device_profile.h: from seconds of a microbatch on a device to its speed and what is left
// to tell of it beyond that.
#pragma once

#include <string>
#include <vector>

#include "simulate/machine.h"
#include "simulate/trace.h"

namespace smp::simulate {

/// Returns the profile of `trace` on `device`.
/// @param seconds  those of every interval there (Trace::index_of)
[[nodiscard]] DeviceProfile profile_of(const Trace& trace, std::string device,
                                       std::vector<IntervalTimes> seconds);

/// Adds seconds to the times of every interval (Trace::index_of), on all devices alike.
void add_times(Trace& trace, const std::vector<IntervalTimes>& seconds);

/// Gives the profiles of all traced microbatches the same speed on a device: that of all together.
void share_device_speeds(Trace& trace);

/// Multiplies the speed of each stage by that of its device. A device without a profile in the
/// trace counts as fast as the traced one.
void take_device_speeds(Machine& machine, const Trace& trace);

}  // namespace smp::simulate
