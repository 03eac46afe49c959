// base/machine/cpu_socket.h: on which socket of its machine a process computes.
#pragma once

#include <string>

namespace smp::base {

/// Number of the socket that has all processors on which this process may run; -1 if they are on
/// several, as without binding, or the system does not say. Any thread.
/// @param cpus  folder in which Linux describes its processors
[[nodiscard]] int bound_socket(const std::string& cpus = "/sys/devices/system/cpu");

}  // namespace smp::base
