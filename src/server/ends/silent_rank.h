// server/ends/silent_rank.h: what is seen of a rank that does not answer, without its help.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "server/modules/module_table.h"
#include "smp/rank.h"

namespace smp::server {

struct SilentRank {
  GlobalRank rank;
  bool stopped = false;  ///< a signal or a debugger holds its process
  std::string text;      ///< who it is, what it did last, how long nothing was seen of it
};

/// Describes a rank by its pulse (alive/pulse.h) and /proc; little is known of a rank of another
/// machine.
/// @param modules  the modules of its pipeline, or of one like it
SilentRank look_at(GlobalRank rank, const ModuleTable& modules, base::Nanoseconds now);
/// Returns all ranks of this machine whose processes are stopped.
std::vector<SilentRank> stopped_ranks(const ModuleTable& modules, base::Nanoseconds now);

}  // namespace smp::server
