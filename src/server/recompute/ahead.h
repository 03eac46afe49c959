// server/recompute/ahead.h: recomputations that a rank does while it would idle, so that backwards
// find them done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>

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
/// there was no backward, no more are in steps of its kind. Threads: the rank's.
class RecomputeAhead {
 public:
  using Place = schedule::AheadPlace;
  using Credit = schedule::AheadCredit;
  struct Step {
    schedule::AheadOrder order;
    int enough = 1;               ///< schedule::enough_alive()
    std::size_t stack_bytes = 0;  ///< of the fiber
    /// True while the rank does nothing although it could. May be empty.
    std::function<bool()> is_kept_free = {};
    /// True once the step has failed. May be empty.
    std::function<bool()> has_failed = {};
  };

  /// That of a rank of this process.
  static std::shared_ptr<RecomputeAhead> of(int rank);

  /// Holds from the next step on.
  void set_credit(const Credit& credit) noexcept {
    credit_ = credit;
    vain_.clear();
  }
  const Credit& credit() const noexcept { return credit_; }
  /// Says which steps are like the next ones, as training or evaluation are.
  void set_kind(std::uint64_t kind) noexcept { kind_ = kind; }

  void begin_step(const Step& step);
  /// No call is computed ahead any more, and what was is let go of. Suspends while one is computed.
  /// @param well  the step has not failed
  void end_step(bool well);

  /// Notes a call whose forward has ended. Outside of a step that does nothing.
  /// @param of_body  the body has made it: it may use the body's variables
  /// @return its place
  Place add(const std::shared_ptr<AheadCall>& call, int microbatch, bool of_body = false);
  /// A body has returned. What it has called and no backward has asked for is not computed any
  /// more: nothing will ask, and the body's variables are gone.
  void body_ended(int microbatch) noexcept;
  /// The backward of the call has begun: it holds what it needs, whoever computed it.
  void began(const Place& place);
  /// Nobody needs the call any more.
  void ended(const Place& place);

  /// The number of calls that were computed ahead, and the most bytes that were held at once when
  /// one was, as AheadCall::bytes_ahead() tells.
  std::int64_t computed() const noexcept { return computed_; }
  std::int64_t most_bytes() const noexcept { return most_bytes_; }

 private:
  int turn_of(int microbatch) const noexcept;
  void wake();
  void work();
  bool waits_until_idle() const;
  void compute_next();
  bool is_due() const;

  Credit credit_;
  Step step_;
  bool open_ = false;   // a step runs that computes ahead
  bool works_ = false;  // the fiber lives
  fiber::Event over_;   // the fiber has ended
  base::FiberSlots slots_{};
  schedule::AheadQueue queue_;
  struct Known {
    std::weak_ptr<AheadCall> call;
    bool of_body;
  };
  std::map<Place, Known> calls_;  // of the queue
  std::uint64_t kind_ = 0;        // of the step
  std::set<std::uint64_t> vain_;  // kinds whose backwards do not ask for most of what is ahead
  std::int64_t added_ = 0, computed_ = 0, most_bytes_ = 0;
  std::int64_t in_step_ = 0, unasked_ = 0;  // computed ahead
};

}  // namespace smp::server
