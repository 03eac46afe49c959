// server/recompute/ahead.h: recomputations that a rank does while it would idle, so that backwards
// find them done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "base/fiber_local.h"
#include "fiber/scheduler.h"
#include "schedule/ahead/ahead_queue.h"

namespace smp::server {

/// A call that is computed again, and may be before its backward asks. Threads: the rank's.
class AheadCall {
 public:
  /// Computes it now, and keeps what that throws for its backward. Does not suspend.
  virtual void compute_ahead() noexcept = 0;
  /// Lets go of what compute_ahead() has made; the backward computes it.
  virtual void let_go() noexcept = 0;
  /// The bytes that it holds once it is computed again, at the most.
  virtual std::int64_t bytes_ahead() const noexcept = 0;

 protected:
  ~AheadCall() = default;
};

/// The calls of one rank in a step that will be computed again. A fiber that comes after all others
/// computes the one that is due (schedule/ahead/ahead_queue.h). What it makes stays until the
/// backward has used it up. After a step most of whose calls were computed ahead for nothing, as
/// there was no backward, no more are. Threads: the rank's.
class RecomputeAhead {
 public:
  using Place = schedule::AheadPlace;
  using Credit = schedule::AheadCredit;
  struct Step {
    int microbatches = 1;
    int enough = 1;               ///< schedule::enough_alive()
    std::size_t stack_bytes = 0;  ///< of the fiber
    /// True while the rank does nothing although it could. May be empty.
    std::function<bool()> is_kept_free;
  };

  /// That of a rank of this process.
  static std::shared_ptr<RecomputeAhead> of(int rank);

  /// Holds from the next step on.
  void set_credit(const Credit& credit) noexcept {
    credit_ = credit;
    vain_ = false;
  }

  void begin_step(const Step& step);
  /// No call is computed ahead any more, and what was is let go of. Suspends while one is computed.
  /// @param well  the step has not failed
  void end_step(bool well);

  /// Notes a call whose forward has ended. Outside of a step that does nothing. @return its place
  Place add(const std::shared_ptr<AheadCall>& call, int microbatch);
  /// The backward of the call has begun: it holds what it needs, whoever computed it.
  void began(const Place& place);
  /// Nobody needs the call any more.
  void ended(const Place& place);

  /// The number of calls that were computed ahead, and the most bytes that were held at once when
  /// one was, as AheadCall::bytes_ahead() tells.
  std::int64_t computed() const noexcept { return computed_; }
  std::int64_t most_bytes() const noexcept { return most_bytes_; }

 private:
  void wake();
  void work();
  bool waits_until_idle() const;
  void compute_next();
  bool is_due() const { return open_ && queue_.due().has_value(); }

  Credit credit_;
  Step step_;
  bool open_ = false;   // a step runs that computes ahead
  bool works_ = false;  // the fiber lives
  bool vain_ = false;   // backwards do not ask for most of what is computed ahead
  fiber::Event over_;   // the fiber has ended
  base::FiberSlots slots_{};
  schedule::AheadQueue queue_;
  std::map<Place, std::weak_ptr<AheadCall>> calls_;  // of the queue
  std::int64_t added_ = 0, computed_ = 0, most_bytes_ = 0;
  std::int64_t in_step_ = 0, unasked_ = 0;  // computed ahead
};

}  // namespace smp::server
