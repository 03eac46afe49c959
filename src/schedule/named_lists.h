// schedule/named_lists.h: the lists that the name of a schedule stands for.
#pragma once

#include <string>

#include "schedule/schedule.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// "1f1b", "zero_bubble", "1f1b+2", "zero_bubble+2", "file:PATH", whose lists are checked, and
/// "simple", as lists for a chain of stages. "interleaved" has none: what is ready runs.
/// @throws UsageError  another name; as ScheduleLists::read() and check_lists(); a file for another
///                     number of ranks or microbatches
[[nodiscard]] ScheduleLists lists_named(const std::string& name, const StepShape& shape);

}  // namespace smp::schedule
