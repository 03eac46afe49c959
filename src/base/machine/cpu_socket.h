// base/machine/cpu_socket.h: on which socket of its machine a process computes.
#pragma once

#include <string>

namespace smp::base {

/// Returns the number of the socket that has all processors on which this process may run; -1 if
/// they are on several, as without binding, or the system does not say. Any thread.
/// @param cpus  the folder in which Linux describes its processors
[[nodiscard]] int bound_socket(const std::string& cpus = "/sys/devices/system/cpu");

}  // namespace smp::base
