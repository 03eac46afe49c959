// server/replay/step_closing.h: how a step ends: what ranks tell each other beside requests and
// answers (docs/design.md, Static mode).
#pragma once

#include "server/protocol/message.h"

namespace smp::server {

/// Of one step on one rank. Messages that begin nothing else go through it. Threads: the rank's;
/// safe in a poll.
class StepClosing {
 public:
  virtual ~StepClosing() = default;

  // ---- on pp_rank 0, while its bodies run

  /// The forward of `microbatch`, or all of it, is done.
  virtual void forward_done(int microbatch) = 0;
  virtual void microbatch_done(int microbatch) = 0;
  /// Nothing moves: tells what is withheld, for which some rank may wait after all.
  /// @return whether there was something
  virtual bool tell_withheld() { return false; }

  // ---- what the calls of this rank, in this step, know of records that others keep

  virtual void backward_asked(PpRank /*owner*/, const BackwardRequest& /*request*/) {}
  /// It was asked for, and keeps its record.
  virtual void backward_not_begun(PpRank /*owner*/, int /*microbatch*/) noexcept {}
  virtual void record_kept(int /*microbatch*/) noexcept {}
  virtual void record_gone(int /*microbatch*/) noexcept {}

  // ---- the end

  /// Of the other ranks: all microbatches are done on pp_rank 0.
  virtual bool may_finish() const noexcept = 0;
  /// This rank has its gradients, and used or changed buffers.
  /// @param news  it says what it had not said in earlier steps
  /// @throws UsageError  ranks do not do the same.
  virtual void finish(FinishGradients&& own, bool news) = 0;
  /// @throws UsageError  as finish().
  virtual void on_message(PpRank source, const FinishGradients& message) = 0;
  /// Of pp_rank 0: it waits for nobody.
  virtual bool all_finished() const noexcept = 0;
  /// Of pp_rank 0: the step ends well, which `message` is to tell.
  virtual void complete(StepEnded& message) = 0;
  /// The same, once its statistics and buffers are what the next step begins with.
  virtual void note_end(StepEnded& message) = 0;
};

}  // namespace smp::server
