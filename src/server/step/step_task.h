// server/step/step_task.h: what one step is to do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/check.h"
#include "schedule/schedule.h"
#include "server/sums/gradient_listener.h"
#include "smp/detail/call.h"
#include "smp/rank.h"

namespace smp::server {

/// Describes what a step is to do. It is the same on all ranks of a pipeline except for `body`,
/// `weights` and `outputs`, and except that only pp_rank 0 knows of a batch with fewer rows than
/// microbatches.
struct StepTask {
  int microbatches = 1;
  const schedule::Schedule* schedule = nullptr;
  std::int64_t earlier_steps = 0;     ///< before the first one, whose random numbers were drawn
  std::int64_t first_microbatch = 0;  ///< number of microbatch 0 in the whole job's batch
  bool in_full = true;  ///< pp_rank 0: as many microbatches as the other ranks are told
  bool broadcast_outputs = true;
  bool one_at_a_time = false;                ///< a microbatch starts when the one before has ended
  std::function<void(int microbatch)> body;  ///< pp_rank 0 only
  std::vector<double> weights;               ///< of each microbatch's loss; pp_rank 0 only
  /// Describes, in few bytes, what ought to be alike on all ranks; compared at the end of the step.
  std::string facts;
  /// Explains how `facts` of rank `other` differ from those of this rank; returns an empty text if
  /// that does not matter. May be called in a poll.
  std::function<std::string(GlobalRank other, const std::string& facts)> explain_difference;
  /// @throws UsageError  those of `other` differ.
  void require_same_facts(GlobalRank other, const std::string& others) const {
    if (!explain_difference || others == facts) return;
    const auto text = explain_difference(other, others);
    SMP_REQUIRE(text.empty(), text);
  }
  /// Called when the gradients of this rank are there; what it throws fails the step. May be empty.
  std::function<void()> check;
  GradientListener* gradients = nullptr;   ///< of this rank; outlives the step
  std::vector<Packet>* outputs = nullptr;  ///< one a microbatch; filled by `body` on pp_rank 0
};

}  // namespace smp::server
