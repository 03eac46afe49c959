// server/replay/step_closings.h: how the steps of a rank end, one after the other.
#pragma once

#include <map>
#include <optional>

#include "schedule/work_order.h"
#include "server/replay/announced_closing.h"
#include "server/replay/replayed_closing.h"

namespace smp::server {

/// Chooses how a step ends, by what those before have told, and in which order its work goes.
/// Threads: the rank's.
class StepClosings {
 public:
  explicit StepClosings(ServerCore& core) : core_(core), recorded_(core.options.static_mode) {}

  /// The schedule of the next step: that of `task`, or in the order of the fastest step before.
  const schedule::Schedule* schedule_of(const StepTask& task);
  /// The step begins that ServerCore::step names.
  void begin();
  /// This rank has its gradients. A step that was to be replayed is not if something new is to be
  /// compared. @throws as StepClosing::finish().
  void finish(FinishGradients&& own);
  /// pp_rank 0 says that the step has ended. Safe in a poll.
  void on_message(const StepEnded& message);
  /// Of a step that has ended on this rank, which is pp_rank 0. Safe in a poll.
  void on_late_message(PpRank source, const FinishGradients& message) {
    take_late_news(core_, recorded_, source, message);
  }
  /// On pp_rank 0: the step ends well, which `message` is to tell; on the others: as it tells.
  void note_end(StepEnded& message);
  void remember(const StepEnded& message);
  /// The step failed.
  void forget() noexcept;

 private:
  bool may_replay() const;

  ServerCore& core_;
  RecordedSteps recorded_;                     // pp_rank 0
  std::map<int, schedule::WorkOrder> orders_;  // of this rank, in the fastest of the recorded steps
  bool keeps_order_ = false;                   // later steps do
  int stood_still_ = 0;                        // pp_rank 0: steps, while ends were withheld
  std::optional<schedule::RecordedOrder> order_;  // of the running step, if it keeps to one
  std::optional<AnnouncedClosing> announced_;     // of the running step
  std::optional<ReplayedClosing> replayed_;
};

}  // namespace smp::server
