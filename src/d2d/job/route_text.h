// d2d/job/route_text.h: which way tensors go, as text that two runs can compare. Threads: as
// Routes.
#pragma once

#include <string>
#include <vector>

#include "d2d/channel/route.h"
#include "d2d/job/job_wires.h"

namespace smp::d2d {

/// Returns how tensors go to `peer`, by their size: "up to 4096 bytes host_shm, above host_shm,
/// from 65536 bytes lent".
/// @param memory  the memory that they lie in
[[nodiscard]] std::string route_text(const Routes& routes, GlobalRank peer, MemoryKind memory);

/// Switches off in `options` what none of these texts uses. @param texts  of all ranks of a job
void keep_to(RouteOptions& options, const std::vector<std::string>& texts);

}  // namespace smp::d2d
