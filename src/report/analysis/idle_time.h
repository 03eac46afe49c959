// report/analysis/idle_time.h: why a rank had nothing to do in a step, and whose work it waited
// for. Threads: any.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "report/analysis/step_arrows.h"
#include "report/analysis/step_timeline.h"

namespace smp::report {

/// The time of one rank by use, in nanoseconds; all members but `without_core` add up to the length
/// of `IdleTime::whole`.
struct RankTimes {
  base::Nanoseconds optimizer = 0;  ///< before the step: in optimizer.step()
  base::Nanoseconds host = 0;       ///< before the step: in code of the program, say loading data
  base::Nanoseconds library = 0;    ///< before the step: in smp, which gets steps ready
  base::Nanoseconds busy = 0;       ///< in modules or the body
  base::Nanoseconds filling = 0;    ///< before its first span: the pipeline fills
  /// After the rank's last span, of this step and of the one before: the pipeline drains, or others
  /// are still busy.
  base::Nanoseconds draining = 0;
  /// Between spans, until another rank sent the message that this one waited for.
  base::Nanoseconds for_work = 0;
  /// The time that the rank would be idle even in a perfect schedule, because others have more to
  /// do: the busy time of the busiest rank in this step minus its own. It is taken out of
  /// `for_work`, then `filling`, then `draining` of this step, and is at most what these hold.
  /// Where ranks outnumber cores, processor times are compared.
  base::Nanoseconds imbalance = 0;
  base::Nanoseconds transport = 0;  ///< between spans, while that message was on its way
  base::Nanoseconds other = 0;      ///< not known: between spans with no message, before the step
  base::Nanoseconds without_core = 0;  ///< part of `busy`, where ranks outnumber cores
};

/// A class of time as tables call it.
struct TimeClass {
  const char* name;
  base::Nanoseconds RankTimes::*time;
};
/// The classes in the order of tables.
inline constexpr std::array<TimeClass, 11> kTimeClasses = {
    {{"optimizer.step()", &RankTimes::optimizer},
     {"host: the program between steps", &RankTimes::host},
     {"smp between steps", &RankTimes::library},
     {"busy", &RankTimes::busy},
     {"of it without a core", &RankTimes::without_core},
     {"before its first work", &RankTimes::filling},
     {"waiting for work of others", &RankTimes::for_work},
     {"idle as others have more to do", &RankTimes::imbalance},
     {"for messages on their way", &RankTimes::transport},
     {"idle for other reasons", &RankTimes::other},
     {"after its last work", &RankTimes::draining}}};

/// Work of one rank that another rank waited for. It may come before the step: while the first
/// rank still loads data, the others wait for its first request.
struct AwaitedWork {
  std::size_t rank = 0, awaited = 0;  ///< places in StepTimeline::ranks: who waited, for whom
  /// The name of the work: "backward of encoder.block.0", "the step body", "optimizer.step()", ...
  std::string work;
  base::Nanoseconds time = 0;  ///< that `rank` was idle while `awaited` did it
};

/// An interval in which a rank had nothing to do, and why. The kinds are those of RankTimes, but
/// for `imbalance`, which belongs to no interval.
struct IdleGap {
  enum class Kind { kFilling, kDraining, kForWork, kTransport, kOther };
  TimeInterval time;
  Kind kind = Kind::kOther;
  std::size_t awaited = 0;  ///< kForWork, kTransport: whom it waits for, in StepTimeline::ranks
  std::string work = {};    ///< kForWork: what that rank did meanwhile, most of the time
};

struct IdleTime {
  TimeInterval whole;                      ///< since the earliest end of the step before, if known
  std::vector<RankTimes> ranks;            ///< of each, in order
  std::vector<std::vector<IdleGap>> gaps;  ///< of each, in order of time; no imbalance is in them
  std::vector<AwaitedWork> awaited;        ///< longest first
};

/// Explains the idle time of every rank. A gap between two spans of a rank is taken to end because
/// of the latest message that came in it. Until that message was sent, the rank waited for the
/// sender, and for the work that the sender did in that time.
/// @param arrows  arrows_of(timeline); if there are none, idle time between spans is `other`
[[nodiscard]] IdleTime idle_time(const StepTimeline& timeline, const std::vector<Arrow>& arrows);

/// Returns the name of a span's work, "forward of encoder.block.0"; for the step body, and between
/// steps, its name alone.
std::string work_name(const StepTimeline& timeline, const schedule::Span& span);

}  // namespace smp::report
