// simulate/fixed_order.h: a step in which every rank of a chain follows its list to the letter:
// what schedules that choose among what is ready (schedule/list_schedule.h) are measured against.
#pragma once

#include <functional>

#include "schedule/schedule_lists.h"

namespace smp::simulate {

/// Returns how long `action` takes on `rank`, in any unit.
using ActionDuration = std::function<double(const schedule::Action& action, int rank)>;

/// Returns the time until the last rank has done its list; messages take no time.
/// @param lists  pass schedule::check_lists()
[[nodiscard]] double time_in_fixed_order(const schedule::ScheduleLists& lists,
                                         const ActionDuration& duration);

}  // namespace smp::simulate
