// smp/recipe/lr_schedule.h: learning rates that rise, hold and fall, step by step.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

#include "smp/detail/export.h"
#include "smp/state_dict.h"

namespace smp {

/// How the learning rate falls from its peak to the floor.
enum class LrDecay {
  kConstant,  ///< not at all
  kLinear,    ///< in a line
  kCosine,    ///< in half a cosine, as torch's CosineAnnealingLR
};

/// The shape of a learning rate over steps, as factors of the peak. Lengths are numbers of steps,
/// one after the other; none of them need be that of the run, which may stop earlier or go on at
/// the floor.
struct LrScheduleOptions {
  /// Steps in which the factor rises in a line, from `warmup_start` in step 0 towards 1.
  std::int64_t warmup_steps = 0;
  double warmup_start = 0;
  /// Steps at the peak between warm-up and decay.
  std::int64_t constant_steps = 0;
  LrDecay decay = LrDecay::kCosine;
  /// Steps from the peak to the floor; at least 1 unless the decay is constant.
  std::int64_t decay_steps = 0;
  /// The factor that is left when the decay is over.
  double floor = 0.1;
};

/// Returns the factor of the peak learning rate in `step`, counted from 0. It is that of Python's
/// LinearLR(warmup_start, total_iters=warmup_steps), ConstantLR and LinearLR or CosineAnnealingLR
/// (T_max=decay_steps, eta_min=floor * peak), joined by SequentialLR, and stays at the floor where
/// a cosine alone would rise again. Any thread.
/// @throws UsageError  `step` or a length is negative, a factor is not in [0, 1], or there is
///                     something to decay and no `decay_steps`.
SMP_API double lr_factor(const LrScheduleOptions& options, std::int64_t step);

/// Sets the learning rates of an optimizer's groups, each from its own peak: the rate that the
/// group had when the schedule was made.
///
///     smp::DistributedOptimizer optimizer(model, torch::optim::AdamW(model.parameters(), 3e-4));
///     smp::LrSchedule schedule(*optimizer, {.warmup_steps = 2000, .decay_steps = 478000});
///     ...
///     optimizer.step();
///     schedule.step();
///
/// Works on any LibTorch optimizer, and on what an smp::DistributedOptimizer wraps (`*optimizer`),
/// where every rank makes one and calls it alike: groups are there on all ranks, parameters or not.
/// Threads: the optimizer's.
class SMP_API LrSchedule {
 public:
  /// Sets the rates of step 0.
  /// @param optimizer  must outlive this object
  /// @param options    the shape, for all groups
  /// @throws UsageError  as lr_factor().
  LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options);

  /// Sets the rates of the next step. Call it after each step of the optimizer.
  /// @throws UsageError  groups were added or removed since the schedule was made.
  void step();
  /// Returns the number of calls of step(), those before a load included.
  std::int64_t steps() const noexcept { return steps_; }
  /// Returns the rates in force, one a group.
  std::vector<double> last_lr() const;

  /// Returns what has to be saved: "last_epoch", an int64 [], and "base_lrs", float64 [groups],
  /// under the names of Python's schedulers. The shape is no state: a job that goes on may have
  /// another, longer one.
  StateDict state_dict() const;
  /// Goes on where the other schedule was, and sets its rates, whatever the optimizer's state says.
  /// @throws UsageError  a name is missing, or there were other groups. Nothing is changed then.
  void load_state_dict(const StateDict& dict);

 private:
  void set_rates();

  torch::optim::Optimizer& optimizer_;
  const LrScheduleOptions options_;
  std::vector<double> peaks_;  // one a group
  std::int64_t steps_ = 0;
};

}  // namespace smp
