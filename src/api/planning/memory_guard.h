// api/planning/memory_guard.h: whether a machine has the memory that its ranks will need.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "api/planning/planning.h"

namespace smp {

class Rank;

/// Returns the text for a user whose plan needs more than `available` bytes (0: unknown) on one
/// machine, or nothing if it does not.
/// @param stages  the stages that the ranks of that machine run; one that several run counts for
///                each
std::optional<std::string> too_little_memory(const std::vector<PlannedModel>& models,
                                             const std::vector<int>& stages,
                                             std::int64_t available);

/// Warns before the first step, on one rank of each machine. Any rank may call it alone.
void warn_of_too_little_memory(const Rank& rank, const std::vector<PlannedModel>& models);

}  // namespace smp
