// schedule/list_check.h: whether lists are a schedule that a step can follow. Pure.
#pragma once

#include <optional>
#include <string>

#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// What is wrong first, in words: "rank 1, position 3, B0: ..."; positions count from 1. Nothing if
/// - each rank does F of every microbatch once, and after it B once, or I and after it W once;
/// - no F stands behind the end (B, W) of a higher microbatch, for which it would wait when the
///   lists are read as windows (schedule/list_schedule.h);
/// - no rank keeps more than `most_alive` microbatches, if that is above 0;
/// - ranks that follow their lists to the letter never stop, where F of a microbatch on rank r
///   needs that of rank r - 1, and B or I on rank r that of rank r + 1: a chain of stages. Where
///   modules call each other in another way the lists are windows and priorities, which cannot
///   stop a step whatever it calls.
/// Ranks are looked at in order, each from its start; last how they go together.
[[nodiscard]] std::optional<std::string> first_violation(const ScheduleLists& lists,
                                                         int most_alive = 0);

/// @param name  leads the message
/// @throws UsageError  first_violation()
void check_lists(const ScheduleLists& lists, const std::string& name, int most_alive = 0);

}  // namespace smp::schedule
