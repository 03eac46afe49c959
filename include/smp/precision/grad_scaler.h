// smp/precision/grad_scaler.h: a loss scaled so that gradients of 16 bits do not vanish, over all
// ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <string>

#include "smp/detail/export.h"
#include "smp/distributed_optimizer.h"
#include "smp/state_dict.h"

namespace smp {

/// Options of GradScaler, under the names of torch.amp.GradScaler's; hysteresis is that of Megatron
/// and of the original.
struct GradScalerOptions {
  double init_scale = 65536;  ///< the first factor of losses
  double growth_factor = 2;   ///< what the factor is multiplied by after growth_interval good steps
  double backoff_factor = 0.5;          ///< what it is multiplied by after steps with an infinity
  std::int64_t growth_interval = 2000;  ///< good steps in a row after which it grows
  std::int64_t hysteresis = 1;  ///< bad steps, since it last grew, from which on it is reduced
  bool enabled = true;          ///< false: every call does as if there were no scaler
};

/// The rules of Python's torch.amp.GradScaler, agreed by all ranks: an infinity or NaN in a
/// gradient of any stage, slice or replica makes every rank skip the step, and all have the same
/// factor.
///
///     auto train = smp::step([&](at::Tensor x) {
///       auto loss = model(x);
///       model.backward(scaler.scale(loss));
///       return loss;
///     });
///     train(x);
///     scaler.unscale_(optimizer);            // only to clip
///     smp::clip_grad_norm_(model, 1.0);
///     scaler.step(optimizer);
///     scaler.update();
///
/// A RunLog writes the factor and how many steps were skipped, as of the last update().
/// Threads: the rank's, outside of steps but for scale(), which bodies call.
class SMP_API GradScaler {
 public:
  /// @throws UsageError  a factor or an interval is out of range.
  explicit GradScaler(const GradScalerOptions& options = {});

  /// Returns `loss` times the factor, in its dtype.
  at::Tensor scale(const at::Tensor& loss) const;
  /// Divides the gradients of the optimizer's parameters by the factor. All ranks call it.
  /// @throws UsageError  it was called since the last update(), or after step(); a gradient of any
  ///                     rank is float16, which would lose what scaling has saved, complex, or of
  ///                     another layout than strided and COO; ranks have other factors or options.
  template <class Optimizer>
  void unscale_(DistributedOptimizer<Optimizer>& optimizer) {
    unscale(*optimizer);
  }
  /// Unscales the gradients unless that is done, and steps the optimizer unless a gradient of any
  /// rank is infinite or not a number. All ranks call it. Returns whether they stepped.
  /// @throws UsageError  it was called since the last update(); no rank has a gradient.
  template <class Optimizer>
  bool step(DistributedOptimizer<Optimizer>& optimizer) {
    if (!may_step(*optimizer)) return false;
    optimizer.step();
    return true;
  }
  /// Changes the factor by what the steps since the last call have found. All ranks call it.
  /// @throws UsageError  neither unscale_() nor step() was called since the last update().
  void update();
  /// Sets the factor instead. All ranks pass the same.
  /// @throws UsageError  it is not positive, or no float.
  void update(double new_scale);

  /// Returns the factor; 1 if not enabled.
  double get_scale() const noexcept;
  /// Returns how many steps were skipped, of all optimizers.
  std::int64_t skipped_steps() const noexcept { return skipped_steps_; }

  /// Returns factor, options and counters under Python's names, each a tensor [] of float64.
  StateDict state_dict() const;
  /// Sets what state_dict() has given, on every rank the same; from Python's, hysteresis stays as
  /// it is. Does nothing if not enabled. Nothing is changed if something is refused.
  /// @throws UsageError  a name is missing, or a value is out of range.
  void load_state_dict(const StateDict& dict);

 private:
  struct Progress {
    bool found_inf = false;  ///< on any rank
    bool stepped = false;
  };

  void unscale(torch::optim::Optimizer& optimizer);
  bool may_step(torch::optim::Optimizer& optimizer);
  std::string text() const;

  GradScalerOptions options_;
  float scale_;
  std::int64_t good_steps_ = 0;  // since the factor last changed
  std::int64_t bad_steps_left_;  // until it is reduced
  std::int64_t skipped_steps_ = 0;
  std::map<const torch::optim::Optimizer*, Progress> optimizers_;  // since the last update()
};

}  // namespace smp
