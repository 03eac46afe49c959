// base/machine/host_name.h: what people call this machine.
#pragma once

#include <string>

namespace smp::base {

/// Returns the name of this machine, as `hostname` prints it; empty if it has none. Any thread.
[[nodiscard]] std::string host_name();

}  // namespace smp::base
