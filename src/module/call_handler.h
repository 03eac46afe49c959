// module/call_handler.h: who serves the module calls of a fiber.
#pragma once

#include <atomic>

#include "base/fiber_local.h"
#include "smp/detail/call.h"

namespace smp::module {

/// The handler of the module calls that the running fiber makes. Set by the layers above, for the
/// fibers that they run: the server of a rank, or the tracer while the first step's body runs in
/// advance. Not owned.
const base::FiberLocal<CallHandler>& call_handler();

/// The number of steps that run in this process; while it is not 0, a routed call on a thread
/// without fibers of ours is refused. Threads: any.
std::atomic<int>& steps_running() noexcept;

}  // namespace smp::module
