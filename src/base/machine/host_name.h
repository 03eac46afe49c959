// base/machine/host_name.h: what people call this machine.
#pragma once

#include <string>

namespace smp::base {

/// As `hostname` says it; empty: it has none. Any thread.
[[nodiscard]] std::string host_name();

}  // namespace smp::base
