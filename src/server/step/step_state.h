// server/step/step_state.h: what lives as long as one step on one rank.
#pragma once

#include <ATen/autocast_mode.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "schedule/step_progress.h"
#include "schedule/work_order.h"
#include "server/admission/admission.h"
#include "server/modules/settings_board.h"
#include "server/protocol/message.h"
#include "server/step/module_visits.h"
#include "server/step/record.h"
#include "server/step/slot_table.h"
#include "server/step/step_task.h"
#include "server/step/weight_parts.h"

namespace smp::server {

class StepClosing;

/// Takes the answer to a request, in a poll: it neither throws nor suspends. One of these is
/// called, once, unless the target was taken out of the table before.
class ResponseTarget {
 public:
  virtual void on_forward(ForwardResponse&& response) noexcept = 0;
  virtual void on_backward(BackwardResponse&& response) noexcept = 0;
  virtual void on_error(Failure&& failure) noexcept = 0;
  /// Called if the step fails before there is an answer.
  virtual void on_abort() noexcept = 0;
  /// Takes the values of an output that was asked for.
  virtual void on_passed_on(PassedOn&&) noexcept {}

 protected:
  ~ResponseTarget() = default;
};

/// The state of one step on one rank. Threads: the rank's.
struct StepState {
  StepState(std::int64_t step_number, const StepTask& step_task, PpRank rank, WorkTimes& times,
            WaitingList& waiting, RequestStarter& starter)
      : number(step_number),
        task(step_task),
        start(times.clock().now()),
        progress(*step_task.schedule, step_task.microbatches, rank.value()),
        admission(progress, times, waiting, starter),
        weights(step_task.microbatches),
        work(step_task.microbatches),
        loss_weights(step_task.weights) {
    loss_weights.resize(static_cast<std::size_t>(step_task.microbatches), 1.0);
  }

  /// Notes that work of `phase` for `microbatch` begins on this rank. No forward of another one
  /// will want the weights that autocast has cast, so in the only one's backward they are freed as
  /// it goes.
  void begins(schedule::Phase phase, int microbatch) {
    const bool only = task.microbatches == 1;
    if (only && phase == schedule::Phase::kBackward) at::autocast::clear_cache();
    work.note(phase, microbatch);
    progress.begins(phase, microbatch);
  }

  const std::int64_t number;
  const StepTask task;
  const base::Nanoseconds start;
  schedule::StepProgress progress;
  Admission admission;
  ModuleVisits visits;
  WeightParts weights;
  schedule::WorkOrder work;  ///< of this rank, as it began
  /// By microbatch: pp_rank 0 knows them from the task, the others from the requests that bring
  /// them the microbatch.
  std::vector<double> loss_weights;
  SlotTable<Record, RecordId> records;             ///< graphs kept for backward
  SlotTable<ResponseTarget*, RequestId> requests;  ///< of this rank, unanswered; not owned
  std::vector<RecordId> released;                  ///< by others, not freed yet

  /// The step ends with this error once every fiber has unwound.
  std::exception_ptr failure;
  bool failed() const noexcept { return failure != nullptr; }

  /// On pp_rank 0: the flags that the bodies have left, by microbatch; empty as long as all have
  /// left them as they were.
  std::vector<SettingsBoard::View> left_settings;

  bool keeps_to_record = false;    ///< the steps before were recorded, for this one to be like them
  StepClosing* closing = nullptr;  ///< who tells whom how far it is; outlives the step
  std::optional<StepEnded> ended;  ///< by word of pp_rank 0
};

}  // namespace smp::server
