// schedule/list_generators.h: the schedules of the literature as lists, for any number of ranks and
// microbatches. Each passes check_lists().
#pragma once

#include "schedule/schedule_lists.h"

namespace smp::schedule {

/// Returns the lists of all forwards, then all backwards (GPipe).
[[nodiscard]] ScheduleLists simple_lists(int pp_size, int microbatches);

/// Returns the lists of one forward, one backward (PipeDream-flush): rank r of p begins with p - r
/// - 1 forwards, then does a forward and a backward in turn, so it keeps at most p - r
/// microbatches.
/// @param more  microbatches that each rank may keep beyond that, at least 0
[[nodiscard]] ScheduleLists one_forward_one_backward_lists(int pp_size, int microbatches,
                                                           int more = 0);

/// Returns the lists of zero bubble, H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2023): the
/// forwards and backwards of 1F1B, where rank r puts the weight gradients off by r microbatches, so
/// that they fill what is a bubble in 1F1B. Every rank keeps at most p microbatches, as rank 0 of
/// 1F1B does. The bubble is (p - 1)(F + I - W) if W takes no longer than F and I.
/// @param more  microbatches that each rank may keep beyond that, at least 0
[[nodiscard]] ScheduleLists zero_bubble_lists(int pp_size, int microbatches, int more = 0);

}  // namespace smp::schedule
