// report/analysis/idle_time.h: why a rank had nothing to do in a step, and whose work it waited
// for. Threads: any.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/analysis/step_arrows.h"
#include "report/analysis/step_timeline.h"

namespace smp::report {

/// Where the time of one rank went, in nanoseconds; all but `without_core` add up to the length of
/// `IdleTime::whole`.
struct RankTimes {
  base::Nanoseconds optimizer = 0;  ///< before the step: in optimizer.step()
  base::Nanoseconds host = 0;       ///< before the step: in code of the program, say loading data
  base::Nanoseconds library = 0;    ///< before the step: in smp, which gets steps ready
  base::Nanoseconds busy = 0;       ///< in modules or the body
  base::Nanoseconds filling = 0;    ///< before its first span: the pipeline fills
  /// After its last span, of this step and of the one before: it drains, or others are still busy.
  base::Nanoseconds draining = 0;
  /// Between spans, until another rank had sent what it waited for.
  base::Nanoseconds for_work = 0;
  /// What it would be idle even in a perfect schedule, because others have more to do: how much
  /// longer the busiest rank was busy in this step, as far as `for_work`, and then `filling` and
  /// `draining` of this step, hold so much, which are shorter by that. Where ranks outnumber cores
  /// processor time is compared.
  base::Nanoseconds imbalance = 0;
  base::Nanoseconds transport = 0;  ///< between spans, while that was on its way
  base::Nanoseconds other = 0;      ///< not known: between spans with no message, before the step
  base::Nanoseconds without_core = 0;  ///< of busy: where ranks outnumber cores
};

/// What ranks waited for: `work` of another rank, before the step too: while the first one still
/// loads data, the others wait for its first request.
struct AwaitedWork {
  std::size_t rank = 0, awaited = 0;  ///< places in StepTimeline::ranks: who waited, for whom
  /// "backward of encoder.block.0", "the step body", "optimizer.step()", ...
  std::string work;
  base::Nanoseconds time = 0;  ///< that `rank` was idle while `awaited` did it
};

/// A time in which a rank had nothing to do, and why; the kinds are those of RankTimes, of which
/// `imbalance` is a part that has no place in time.
struct IdleGap {
  enum class Kind { kFilling, kDraining, kForWork, kTransport, kOther };
  TimeInterval time;
  Kind kind = Kind::kOther;
  std::size_t awaited = 0;  ///< kForWork and kTransport: for whom, a place in StepTimeline::ranks
  std::string work = {};    ///< kForWork: what that rank did meanwhile, most of the time
};

struct IdleTime {
  TimeInterval whole;                      ///< since the earliest end of the step before, if known
  std::vector<RankTimes> ranks;            ///< of each, in order
  std::vector<std::vector<IdleGap>> gaps;  ///< of each, in order of time; no imbalance is in them
  std::vector<AwaitedWork> awaited;        ///< longest first
};

/// A gap between two spans of a rank ends because a message came, the latest one in it. Up to the
/// moment when that was sent the rank waited for the sender, and for whatever the sender computed
/// in that time.
/// @param arrows  arrows_of(timeline); if there are none, idle time between spans is `other`
[[nodiscard]] IdleTime idle_time(const StepTimeline& timeline, const std::vector<Arrow>& arrows);

/// "forward of encoder.block.0"; of the step body, and between steps, its name alone.
std::string work_name(const StepTimeline& timeline, const schedule::Span& span);

}  // namespace smp::report
