// api/planning/memory_shares.h: what of the stages' memory each of a session's models may take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "api/planning/planning.h"
#include "simulate/machine.h"

namespace smp {

/// Returns `machine` with the part of its memory that one of several models may take, in proportion
/// to its part of what they all need.
/// @param needs  bytes that each model needs
[[nodiscard]] simulate::Machine with_part_of_memory(simulate::Machine machine,
                                                    const std::vector<double>& needs,
                                                    std::size_t model);

/// Returns the bytes of each stage's memory that the plans made so far leave, at least one byte.
[[nodiscard]] std::vector<std::int64_t> memory_left(
    const simulate::Machine& machine, const std::vector<std::optional<PlannedModel>>& plans);

}  // namespace smp
