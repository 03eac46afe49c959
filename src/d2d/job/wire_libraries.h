// d2d/job/wire_libraries.h: the libraries of the wires between machines, as this process finds
// them, for people. Threads: one at a time.
#pragma once

#include "base/machine/transport_check.h"

namespace smp::d2d {

/// Loads UCX and starts it, as a wire would, and ends it again. The variables that a wire sets stay
/// in the environment.
base::NetworkLibrary look_at_ucx();
/// Does the same with libfabric; `uses` names the provider.
base::NetworkLibrary look_at_ofi();

}  // namespace smp::d2d
