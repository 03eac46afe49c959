// server/replay/replayed_closing.h: steps that end without control messages, because those before
// did as these do.
#pragma once

#include <optional>

#include "server/replay/end_news.h"
#include "server/replay/recorded_steps.h"
#include "server/replay/step_closing.h"
#include "server/step/server_core.h"

namespace smp::server {

/// On other ranks than pp_rank 0 a step is one once StepEnded says so. Under windows, which wait
/// for ends, those are told that cannot see them.
class ReplayedClosing final : public StepClosing {
 public:
  /// @param recorded    of pp_rank 0
  /// @param stood_still  counts there steps in which nothing moved while ends were withheld
  ReplayedClosing(ServerCore& core, RecordedSteps& recorded, int& stood_still);

  void forward_done(int) override {}
  void microbatch_done(int microbatch) override;
  bool tell_withheld() override;
  void backward_asked(PpRank owner, const BackwardRequest& request) override;
  void backward_not_begun(PpRank owner, int microbatch) noexcept override;
  void record_kept(int microbatch) noexcept override;
  void record_gone(int microbatch) noexcept override;
  bool may_finish() const noexcept override { return true; }
  void finish(FinishGradients&& own, bool news) override;
  void on_message(PpRank source, const FinishGradients& message) override;
  bool all_finished() const noexcept override { return true; }
  void complete(StepEnded& message) override;
  void note_end(StepEnded& message) override;

 private:
  ServerCore& core_;
  RecordedSteps& recorded_;
  int& stood_still_;
  std::optional<EndNews> ends_;  // on pp_rank 0, under windows
};

/// What another rank has to say after the end of a replayed step, to pp_rank 0. The step that runs,
/// if it has not begun to end, ends as if it were not replayed, so that all say what they know.
void take_late_news(ServerCore& core, RecordedSteps& recorded, PpRank source,
                    const FinishGradients& message);

}  // namespace smp::server
