// schedule/named_lists.h: the lists that the name of a schedule stands for.
#pragma once

#include <string>

#include "schedule/schedule.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// Returns the lists of a named schedule for a chain of stages: "1f1b", "zero_bubble", "1f1b+2",
/// "zero_bubble+2", "simple", or "file:PATH", whose lists are checked. "interleaved" has none,
/// since it runs what is ready.
/// @throws UsageError  another name; as ScheduleLists::read() and check_lists(); a file for another
///                     number of ranks or microbatches
[[nodiscard]] ScheduleLists lists_named(const std::string& name, const StepShape& shape);

}  // namespace smp::schedule
