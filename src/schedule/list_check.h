// schedule/list_check.h: whether lists are a schedule that a step can follow. Pure.
#pragma once

#include <optional>
#include <string>

#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// Returns the first thing that is wrong with the lists, in words: "rank 1, position 3, B0: ...";
/// positions count from 1. Returns nothing if
[[nodiscard]] std::optional<std::string> first_violation(const ScheduleLists& lists,
                                                         int most_alive = 0);

/// Throws UsageError with the text of first_violation(), if there is one.
/// @param name  leads the message
void check_lists(const ScheduleLists& lists, const std::string& name, int most_alive = 0);

}  // namespace smp::schedule
