// base/recorder.h: spans of module execution on one rank, for the timeline and the bubble (§4.17).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"

namespace smp::base {

enum class Phase : std::uint8_t { kForward = 0, kBackward = 1, kOptimizer = 2, kOther = 3 };

/// One uninterrupted stretch in which a rank's thread ran one execution. Spans of a rank never
/// overlap, so their lengths add up to its busy time.
struct Span {
  Nanoseconds start = 0;  ///< SteadyClock
  Nanoseconds end = 0;
  Nanoseconds cpu = 0;  ///< thread CPU time within the span
  std::int32_t microbatch = -1;
  std::int32_t module = -1;  ///< index of the module path; -1 is the step body
  Phase phase = Phase::kForward;
};

/// Everything one rank recorded of one step.
struct StepTrace {
  int pp_rank = 0;
  std::int64_t step = 0;
  Nanoseconds start = 0;  ///< SteadyClock at the start of the step on this rank
  Nanoseconds end = 0;
  bool oversubscribed = false;  ///< ranks outnumber cores: wall-clock spans overstate work
  std::vector<Span> spans;

  Nanoseconds busy_wall() const;
  Nanoseconds busy_cpu() const;
};

/// 1 - sum(busy) / (ranks * makespan), with busy as CPU time if oversubscribed, else wall time.
double bubble(const std::vector<StepTrace>& ranks);

/// Collects spans; off by default, cheap when off.
class Recorder {
 public:
  explicit Recorder(const Clock& clock) : clock_(clock) {}
  void enable(bool on) noexcept { enabled_ = on; }
  bool enabled() const noexcept { return enabled_; }
  void begin(std::int32_t microbatch, std::int32_t module, Phase phase) noexcept;
  void end() noexcept;
  /// Moves the spans out.
  std::vector<Span> take();

 private:
  const Clock& clock_;
  bool enabled_ = false;
  bool open_ = false;
  Span current_;
  std::vector<Span> spans_;
};

}  // namespace smp::base
