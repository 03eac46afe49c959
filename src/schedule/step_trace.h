// schedule/step_trace.h: what ran when in one step, measured or simulated, and the bubble of it.
// Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "schedule/phase.h"

namespace smp::schedule {

/// One uninterrupted interval in which a rank's thread ran one execution. Spans of a rank never
/// overlap, so their lengths add up to its busy time.
struct Span {
  base::Nanoseconds start = 0;  ///< SteadyClock
  base::Nanoseconds end = 0;
  base::Nanoseconds cpu = 0;  ///< of the thread; up to 20 us off (server/running/span_recorder.h)
  std::int32_t microbatch = -1;
  std::int32_t module = -1;  ///< index of the module path; -1 is the step body
  Phase phase = Phase::kForward;
};

/// One end of a message about a request of one rank to another.
struct RequestEvent {
  enum class Kind : std::uint8_t {
    kAsked,     ///< the caller sent the request
    kPassedOn,  ///< another rank, or the owner itself, sent a tensor that was promised to it
    kBegun,     ///< the owner runs it
    kAnswered,  ///< the owner sent the answer
    kReceived,  ///< the caller has the answer
    kTook,      ///< the request that has just begun here has an output of this one, sent unasked
  };
  base::Nanoseconds time = 0;  ///< SteadyClock
  std::int32_t caller = -1;    ///< pp_rank
  std::int64_t request = 0;    ///< number that the caller gave the request
  Kind kind = Kind::kAsked;
};

/// Everything one rank recorded of one step.
struct StepTrace {
  int pp_rank = 0;
  std::int64_t step = 0;
  base::Nanoseconds start = 0;  ///< SteadyClock at the start of the step on this rank
  base::Nanoseconds end = 0;
  bool oversubscribed = false;  ///< ranks outnumber cores: wall-clock spans overstate work
  std::vector<Span> spans;
  std::vector<RequestEvent> requests;  ///< in order of time
  /// The work of the rank's thread since the end of its last step, in order of time. Empty for the
  /// first step that was recorded, and for a simulated one.
  std::vector<Span> between = {};

  /// Sums over the spans of the step, without those between steps.
  [[nodiscard]] base::Nanoseconds busy_wall() const;
  [[nodiscard]] base::Nanoseconds busy_cpu() const;
};

/// Returns 1 - sum(busy) / (ranks * makespan), from the first start to the last end; busy is CPU
/// time if some rank is oversubscribed, else wall time. 0 if there are no ranks.
[[nodiscard]] double bubble(const std::vector<StepTrace>& ranks);

}  // namespace smp::schedule
