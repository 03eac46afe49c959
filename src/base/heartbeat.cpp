// base/heartbeat.cpp: see the header.
#include "base/heartbeat.h"

namespace smp::base {

std::atomic<std::uint64_t> heartbeats{0};

}  // namespace smp::base
