// schedule/list_schedule.h: what lists mean when a step runs, whatever the model calls. Pure.
//
// A model's modules need not be a chain, so no rank can follow a list to the letter: what comes
// next in it may never be asked for. So the list of a rank is read as
// - priorities: of what is ready, the action that stands earlier runs first;
// - windows: forward work of microbatch i may begin on the rank only when each microbatch whose end
//   (B, W) stands before F<i> has ended there. So the rank never keeps more microbatches than its
//   list does;
// - holds: before work in front of which something stands that has not begun, the rank stays free
//   for a bounded time (schedule/hold_rule.h).
//
// Windows cannot stop a step. Take the lowest microbatch i that has not ended on all ranks. All
// that a forward of it waits for is lower (check_lists() refuses other lists), so it has ended, and
// i may enter every rank. Its body has started or is the next to start, since bodies start in
// order. Nothing else waits for another microbatch for long: priorities only choose among what is
// ready, holds have an end, and a backward never waits for a window. So i goes on until it has
// ended, and then the next one is the lowest. This needs no more of a rank than that it learns when
// a microbatch has ended there.
#pragma once

#include <memory>
#include <string>

#include "schedule/schedule.h"
#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// Makes a schedule that reads `lists` in this way. It is for steps with as many microbatches as
/// the lists have, or fewer: what the lists say of the others does not count then.
/// @param lists  pass check_lists()
[[nodiscard]] std::unique_ptr<Schedule> make_list_schedule(std::string name,
                                                           const ScheduleLists& lists);

}  // namespace smp::schedule
