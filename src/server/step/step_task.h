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

/// The same on all ranks of a pipeline but for `body`, `weights` and `outputs`, and that pp_rank 0
/// alone knows of a batch with fewer rows than microbatches.
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
  /// What ought to be alike on all ranks, compared at the end of the step; few bytes.
  std::string facts;
  /// Explains how those of `other` differ from `facts`. Called in a poll.
  std::function<std::string(GlobalRank other, const std::string& facts)> explain_difference;
  /// @throws UsageError  those of `other` differ.
  void require_same_facts(GlobalRank other, const std::string& others) const {
    if (!explain_difference || others == facts) return;
    const auto text = explain_difference(other, others);
    SMP_REQUIRE(text.empty(), text);
  }
  GradientListener* gradients = nullptr;   ///< of this rank; outlives the step
  std::vector<Packet>* outputs = nullptr;  ///< one a microbatch; filled by `body` on pp_rank 0
};

}  // namespace smp::server
