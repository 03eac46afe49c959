// api/rank/rank_device.h: which device a rank computes on. Threads: the rank's.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace smp {

/// Returns the device for rank `local_rank` of its machine, in turn. It becomes the calling
/// thread's current device, its home (base/machine/home_device.h), and the device of the random
/// numbers of steps.
/// @param name  a type of device as LibTorch names it
/// @throws UsageError  LibTorch does not know it, or there is none here.
c10::Device take_device(const std::string& name, int local_rank);

/// Returns the device in whose memory the tensors lie that travel from a rank which computes on
/// `device`: that one, or beside a CPU the Neuron core that the program has asked for
/// (smp/program/neuron.h).
c10::Device memory_device(c10::Device device);

}  // namespace smp
