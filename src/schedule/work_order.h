// schedule/work_order.h: in which order a rank began its work in a step, and the schedule that
// keeps to it (paper §4.4: the order of the fastest of the recorded steps). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/phase.h"
#include "schedule/schedule.h"

namespace smp::schedule {

/// The order in which one rank first did forward and backward work of each microbatch in one step.
/// A value.
class WorkOrder {
 public:
  WorkOrder() = default;
  /// Makes the order of a step of `microbatches`, in which nothing has begun.
  explicit WorkOrder(int microbatches) : places_(2 * static_cast<std::size_t>(microbatches), -1) {}

  int microbatches() const noexcept { return static_cast<int>(places_.size() / 2); }
  /// Notes that work of this kind begins. Counts once; phases other than forward and backward do
  /// not count.
  void note(Phase phase, int microbatch) noexcept;
  /// Returns the position of some work in the order, from 0; -1: it did not begin.
  int place(Phase phase, int microbatch) const noexcept;
  /// True if backward work of any microbatch began.
  bool has_backward() const noexcept;

 private:
  static constexpr std::size_t index(Phase phase, int microbatch) noexcept {
    return 2 * static_cast<std::size_t>(microbatch) + (phase == Phase::kBackward ? 1 : 0);
  }

  std::vector<int> places_;  // by microbatch, forward then backward
  int next_ = 0;
};

/// A schedule whose priorities are the positions in a recorded order, and the rest is that of
/// another schedule. Work that did not begin in the recorded step comes after what did; in steps of
/// another number of microbatches all is as in the other schedule. Only which of several ready
/// executions goes first is taken over, so nobody waits for what may not come.
class RecordedOrder final : public Schedule {
 public:
  /// @param base, order  both outlive this object
  RecordedOrder(const Schedule& base, const WorkOrder& order) : base_(base), order_(order) {}

  const char* name() const noexcept override { return base_.name(); }
  bool may_start(const Progress& progress) const noexcept override {
    return base_.may_start(progress);
  }
  bool may_begin_backward(const Progress& progress) const noexcept override {
    return base_.may_begin_backward(progress);
  }
  std::int64_t priority(Phase phase, int microbatch,
                        const Progress& progress) const noexcept override;
  const RankList* list(int pp_rank) const override { return base_.list(pp_rank); }
  double hold(int pp_rank, Phase phase) const noexcept override {
    return base_.hold(pp_rank, phase);
  }
  int most_alive(int pp_rank, int microbatches) const noexcept override {
    return base_.most_alive(pp_rank, microbatches);
  }
  bool splits_backward(int pp_rank, int microbatch) const noexcept override {
    return base_.splits_backward(pp_rank, microbatch);
  }

 private:
  const Schedule& base_;
  const WorkOrder& order_;
};

}  // namespace smp::schedule
