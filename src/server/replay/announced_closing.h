// server/replay/announced_closing.h: steps whose end is announced: by control messages, from
// pp_rank 0 and back.
#pragma once

#include "server/replay/recorded_steps.h"
#include "server/replay/step_closing.h"
#include "server/step/server_core.h"

namespace smp::server {

class AnnouncedClosing final : public StepClosing {
 public:
  /// @param recorded  of pp_rank 0
  AnnouncedClosing(ServerCore& core, RecordedSteps& recorded) : core_(core), recorded_(recorded) {}

  void forward_done(int microbatch) override;
  void microbatch_done(int microbatch) override;
  bool may_finish() const noexcept override { return may_finish_; }
  void finish(FinishGradients&& own, bool news) override;
  void on_message(PpRank source, const FinishGradients& message) override;
  bool all_finished() const noexcept override { return ranks_finished_ == core_.port.size() - 1; }
  void complete(StepEnded& message) override;
  void note_end(StepEnded& message) override;

 private:
  RecordedSteps::Kind kind_of_step() const noexcept;

  ServerCore& core_;
  RecordedSteps& recorded_;
  bool may_finish_ = false;
  int ranks_finished_ = 0;  // pp_rank 0: of the others
  bool news_ = false;       // pp_rank 0: some rank has said something new
};

}  // namespace smp::server
