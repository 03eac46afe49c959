// smp/recipe/spike_detector.h: gradient norms that jump, and how soon they come back
// (HLAT, arXiv 2404.10630, section 5).
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "smp/detail/export.h"
#include "smp/state_dict.h"

namespace smp {

/// What SpikeDetector calls a spike; the values are HLAT's.
struct SpikeDetectorOptions {
  std::int64_t window = 20;  ///< steps whose mean is the level
  double threshold = 0.1;    ///< what a spike is above the level
};

/// Watches one number of each step, the norm of the gradients or the loss. A value is a spike if it
/// is above r + threshold, where r is the mean of the `window` values before it, or if it is not
/// finite; it lasts until a value is not. There are no spikes before `window` values are known.
/// Finite values of a spike enter the mean, so a level that rose for good is no spike for long.
/// HLAT saw 86 % of the spikes of its gradients last a single step; longer ones announce that a
/// training comes apart. Threads: one at a time.
class SMP_API SpikeDetector {
 public:
  /// @throws UsageError  the window is empty, or the threshold negative.
  explicit SpikeDetector(const SpikeDetectorOptions& options = {});

  /// Takes the value of the next step. Returns whether it is a spike, or belongs to one.
  bool observe(double value);

  /// Returns the mean of the last `window` values; NaN before there are so many.
  double level() const;
  /// Returns how many steps the running spike has lasted; 0 if there is none.
  std::int64_t running() const noexcept { return running_; }
  /// Returns how many spikes there were, the running one included.
  std::int64_t spikes() const;
  /// Returns how many spikes have ended, by the steps that they lasted.
  const std::map<std::int64_t, std::int64_t>& ended() const noexcept { return ended_; }
  /// Returns the share of the spikes that ended which lasted one step; NaN if none ended.
  double recovered_in_one_step() const;

  /// Returns all but the options: "values" float64 [at most window], "running" int64 [], "ended"
  /// int64 [lengths, 2], each length beside its number.
  StateDict state_dict() const;
  /// Goes on where the other detector was; of more values than its window the last ones count.
  /// @throws UsageError  a name is missing, or has another shape. Nothing is changed then.
  void load_state_dict(const StateDict& dict);

 private:
  SpikeDetectorOptions options_;
  std::deque<double> values_;
  std::int64_t running_ = 0;
  std::map<std::int64_t, std::int64_t> ended_;
};

}  // namespace smp
