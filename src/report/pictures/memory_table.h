// report/pictures/memory_table.h: what each stage took beside what was predicted of it. Threads:
// any.
#pragma once

#include <string>
#include <vector>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// A text that explains what measured memory counts.
inline constexpr const char* kMeasuredMemory =
    "Measured memory is the most bytes of tensors at once, from the second step on, beyond those "
    "that there were before the run: on stage 0 with the batch. What ranks lend each other counts "
    "where it was made.";

/// Returns a row of headings, then a row per stage; each number has its unit, "-" stands for an
/// unknown one. No rows at all if nothing is known.
/// @param predicted  null if there is no prediction
[[nodiscard]] std::vector<std::vector<std::string>> memory_rows(const MemoryUse& measured,
                                                                const PlanSummary* predicted);

}  // namespace smp::report
