// schedule/schedule.h: which microbatch may start, which backward may begin, and what runs first.
// Pure: no clock, no messages. A step asks it through schedule/step_progress.h. Paper §4.3.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "schedule/phase.h"

namespace smp::schedule {

/// Where the microbatches of a step stand, as pp_rank 0 sees them.
struct Progress {
  int microbatches = 0;
  int started = 0;       ///< bodies started; they start in order 0, 1, 2, ...
  int forward_done = 0;  ///< bodies that reached their first backward() or their end
  int finished = 0;      ///< bodies that ended
  int in_flight() const noexcept { return started - finished; }
};

/// A pipeline schedule. Stateless, so one object serves every rank, and any thread.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual const char* name() const noexcept = 0;
  /// May the next microbatch's body start? Asked only while some are left.
  virtual bool may_start(const Progress& progress) const noexcept = 0;
  /// May a body that reached its first backward() go on?
  virtual bool may_begin_backward(const Progress& progress) const noexcept = 0;
  /// Order of what is ready on one rank: smaller runs first.
  virtual std::int64_t priority(Phase phase, int microbatch,
                                const Progress& progress) const noexcept = 0;
};

/// All forwards, then all backwards. Keeps every microbatch in flight, so it has no cap.
[[nodiscard]] std::unique_ptr<Schedule> make_simple();

/// A ready backward before the next forward, with at most `active_microbatches` in flight: one
/// forward, one backward, chosen opportunistically.
/// @throws UsageError  `active_microbatches` is below 1
[[nodiscard]] std::unique_ptr<Schedule> make_interleaved(int active_microbatches);

/// By configuration name: "simple" or "interleaved".
/// @param active_microbatches  as make_interleaved(); of no meaning for "simple"
/// @throws UsageError          for another name, or as make_interleaved()
[[nodiscard]] std::unique_ptr<Schedule> make_schedule(const std::string& name,
                                                      int active_microbatches);

}  // namespace smp::schedule
