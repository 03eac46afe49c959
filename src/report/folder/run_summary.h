// report/folder/run_summary.h: a run in a dozen lines: how it went, held against what its plan
// promised.
#pragma once

#include <string>

#include "report/folder/run_facts.h"

namespace smp::report {

/// Returns the summary of a run for a terminal: medians of step time, bubble and rates per second
/// over all steps but the first, which begins cold, and the memory of each stage.
std::string run_summary(const RunFacts& facts, int width = 100);

}  // namespace smp::report
