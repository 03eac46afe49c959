// partition/search/partitioner.h: from a traced model and the user's wishes to a plan (paper §4.5).
// Pure functions: every rank comes to the same plan by itself.
#pragma once

#include <string>
#include <vector>

#include "partition/model/module_tree.h"
#include "partition/model/pin.h"
#include "schedule/schedule.h"
#include "simulate/machine.h"
#include "simulate/trace.h"
#include "smp/plan.h"

namespace smp::partitioning {

struct PartitionOptions {
  int pp_size = 1;
  std::vector<Pin> pins;
  /// True: places modules without a pin automatically; else they go to `default_partition`.
  bool auto_partition = true;
  int default_partition = 0;

  /// The trace of one microbatch or several; if it has no calls, count_trace() stands for it.
  simulate::Trace trace;
  /// Speeds, memory and links of the stages; its `stages` is not read (`pp_size` is).
  simulate::Machine machine;
  /// The strategy: "best", "tree", "contiguous" or "search".
  std::string strategy = "best";
  double memory_weight = 0.8;  ///< alpha of equation 1

  std::string pipeline = "interleaved";
  int microbatches = 1;
  /// The most microbatches in flight under "interleaved", which needs at least 1.
  int active_microbatches = 0;
  /// Bytes of optimizer state over bytes of trained weights: SGD 0, momentum 1, Adam 2.
  double optimizer_ratio = 2;
  /// The number of copies of each gradient: 2 where replicas keep their sums aside.
  int gradient_copies = 1;
  /// Modules that may be computed again where the memory of a stage does not suffice; ascending. If
  /// there are any, also fewer than `active_microbatches` may be in flight under "interleaved".
  std::vector<int> recomputable = {};
  /// True: a model that no found placement fits into memory is an error; else the plan that lacks
  /// least memory is made.
  bool refuse_unfit = true;
  /// True: other models of the session give the stages something to run. So this one may have fewer
  /// modules to place than there are stages, and then is on stage 0 but for its pins.
  bool may_leave_idle = false;
};

/// Returns the shape of the step for which its schedule is made.
[[nodiscard]] inline schedule::StepShape shape_of(const PartitionOptions& options) {
  return {options.pp_size, options.microbatches, options.active_microbatches};
}

/// Places every module. Pins come first; tied weights and modules that cannot leave their parent go
/// together; the model itself is on stage 0; every stage gets something to run. "best" takes, of
/// all that the strategies find, the smallest simulated step time, where a stage that costs more
/// than its share counts as time too, and never a slower step than that of "tree".
/// With `recomputable` modules it takes the best of what it finds for several numbers of
/// microbatches in flight, where each placement has the least computed again that it needs to fit.
/// @throws UsageError     all faults of the pins at once: an unknown or ambiguous path (with the
///                        most similar), a stage out of range, a module that cannot leave its
///                        parent, tied weights on two stages; an unknown strategy or schedule.
/// @throws ResourceError  more stages than modules to place (unless `may_leave_idle`); a stage
/// whose memory is too small (if
///                        `refuse_unfit`): whether that is proven, and what would help.
[[nodiscard]] PartitionPlan make_plan(const ModuleTree& tree, const PartitionOptions& options);

}  // namespace smp::partitioning
