// d2d/collectives/device_agreement.h: whether the devices of a group can do its collectives,
// decided by all of its members alike. Threads: the rank's thread only; call it from a fiber.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "d2d/collectives/communicator.h"
#include "d2d/collectives/device_collectives.h"

namespace smp::d2d {

struct ConnectedDevices {
  std::unique_ptr<DeviceCollectives> devices;  ///< on all members, or on none
  std::string problem;                         ///< then the reason, the same on all members
};

/// Connects the devices of a group: every member makes its end; if each has a device of its own,
/// the leader makes an id for all, and they connect. All members call it. Suspends the fiber.
ConnectedDevices connect_devices(const Communicator& ranks, const MakeDeviceCollectives& make,
                                 c10::Device device);

}  // namespace smp::d2d
