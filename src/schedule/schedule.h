// schedule/schedule.h: which microbatch may start or enter a rank, which backward may begin, and
// what runs first.
// Pure: no clock, no messages. A step asks it through schedule/step_progress.h. Paper §4.3.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "schedule/phase.h"

namespace smp::schedule {

/// The progress of a step's microbatches, as pp_rank 0 sees it. On other ranks only the first and
/// the last member are set.
struct Progress {
  int microbatches = 0;
  int started = 0;       ///< bodies started; they start in order 0, 1, 2, ...
  int forward_done = 0;  ///< bodies that reached their first backward() or their end
  int finished = 0;      ///< bodies that ended
  int pp_rank = 0;       ///< the rank that asks
  int in_flight() const noexcept { return started - finished; }
};

class RankList;

/// A pipeline schedule. Stateless, so one object serves every rank, and any thread.
class Schedule {
 public:
  virtual ~Schedule() = default;
  virtual const char* name() const noexcept = 0;
  /// True if the next microbatch's body may start. Asked only while some are left.
  virtual bool may_start(const Progress& progress) const noexcept = 0;
  /// True if a body that reached its first backward() may go on.
  virtual bool may_begin_backward(const Progress& progress) const noexcept = 0;
  /// Returns the order of what is ready on one rank: smaller runs first.
  virtual std::int64_t priority(Phase phase, int microbatch,
                                const Progress& progress) const noexcept = 0;

  /// Returns the list of a rank; nullptr: it has none, and forward work may always begin there.
  virtual const RankList* list(int /*pp_rank*/) const { return nullptr; }
  /// Returns how long the rank stays free, before it begins work of this kind, for what stands
  /// earlier in its list (schedule/hold_rule.h): a multiple of the usual time of that work.
  virtual double hold(int /*pp_rank*/, Phase /*phase*/) const noexcept { return 0; }
  /// Returns the most microbatches that a rank keeps at once, in a step of `microbatches`.
  virtual int most_alive(int pp_rank, int microbatches) const noexcept = 0;
  /// True if the backward of a microbatch is in two parts on a rank: the second, which computes the
  /// gradients of weights, is work of its own then (Phase::kWeightGradient).
  virtual bool splits_backward(int /*pp_rank*/, int /*microbatch*/) const noexcept { return false; }
};

/// True if the backward of any of `microbatches` is in two parts on the rank.
[[nodiscard]] bool splits_any_backward(const Schedule& schedule, int pp_rank,
                                       int microbatches) noexcept;

/// Makes a schedule of all forwards, then all backwards. It keeps every microbatch in flight, so it
/// has no cap.
[[nodiscard]] std::unique_ptr<Schedule> make_simple();

/// Makes a schedule with at most `active_microbatches` in flight: one forward, one backward, chosen
/// opportunistically. What is ready runs in the order of its microbatches, forwards with a lead: a
/// backward goes before the forwards of microbatches that come `lead` or more after its own;
/// without a lead before that of its own microbatch as well. (In the paper, §4.3, every ready
/// backward goes before every forward.)
/// @param lead  microbatches; make_schedule() takes up to pp_size if so many are in flight beyond
///              those that fill the pipeline
/// @throws UsageError  `active_microbatches` is below 1
[[nodiscard]] std::unique_ptr<Schedule> make_interleaved(int active_microbatches, int lead = 0);

/// The numbers of a step that a schedule depends on.
struct StepShape {
  int pp_size = 1;
  int microbatches = 1;
  int active_microbatches = 1;  ///< most in flight under "interleaved"; of no meaning for others
};

/// Makes the schedule of a configuration name: "simple", "interleaved", "1f1b", "zero_bubble", or
/// "file:PATH", whose lists (schedule/schedule_lists.h) are checked. "1f1b+2" and "zero_bubble+2"
/// let each rank keep two microbatches more.
/// @throws UsageError  for another name; as make_interleaved(), ScheduleLists::read() and
///                     check_lists(); lists for another number of ranks or microbatches
[[nodiscard]] std::unique_ptr<Schedule> make_schedule(const std::string& name,
                                                      const StepShape& shape);

}  // namespace smp::schedule
