// report/pictures/memory_table.h: what each stage took beside what was predicted of it. Threads:
// any.
#pragma once

#include <string>
#include <vector>

#include "report/pictures/memory_use.h"
#include "smp/plan.h"

namespace smp::report {

/// A text that explains what measured memory counts and predicted memory does not.
inline constexpr const char* kMeasuredMemory =
    "Measured memory is the most that the process took beyond what it had before there was a "
    "model: with the batch, with what operators take inside, with what the heap keeps, and with "
    "what other ranks have lent it; predicted are tensors alone.";

/// Returns a row of headings, then a row per stage; each number has its unit, "-" stands for an
/// unknown one. No rows at all if nothing is known.
/// @param predicted  null if there is no prediction
[[nodiscard]] std::vector<std::vector<std::string>> memory_rows(const MemoryUse& measured,
                                                                const PlanSummary* predicted);

}  // namespace smp::report
