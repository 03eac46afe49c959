// module/call_handler.h: who serves the module calls of a fiber.
#pragma once

#include <atomic>

#include "base/fiber_local.h"
#include "smp/detail/call.h"

namespace smp::module {

/// Set by the layers above, for the fibers that they run: the server of a rank, or the tracer while
/// the first step's body runs in advance. Not owned.
const base::FiberLocal<CallHandler>& call_handler();

/// Steps running in this process; a routed call on a foreign thread is refused while it is not 0.
/// Threads: any.
std::atomic<int>& steps_running() noexcept;

}  // namespace smp::module
