// server/replay/replayed_closing.cpp: ranks compare and see for themselves.
#include "server/replay/replayed_closing.h"

#include <utility>

#include "base/log.h"

namespace smp::server {

ReplayedClosing::ReplayedClosing(ServerCore& core, RecordedSteps& recorded, int& stood_still)
    : core_(core), recorded_(recorded), stood_still_(stood_still) {
  if (!core.port.is_first() || !core.step->progress.has_list()) return;
  ends_.emplace(core.step->task.microbatches, core.port.size());
  if (stood_still_ > 1) ends_->hide_nothing();
}

// ---- ends under windows ------------------------------------------------------------------------

/// A rank waits until a microbatch has ended there, if it does not see that itself.
void ReplayedClosing::microbatch_done(int microbatch) {
  if (!ends_) return;
  for (const PpRank rank : ends_->to_tell(microbatch)) {
    core_.port.send(rank, Message(MicrobatchDone{microbatch}));
  }
}

/// Perhaps a rank waits for the end of a microbatch that has ended. Or another one computes for
/// long, so later steps withhold as before unless it happens again.
bool ReplayedClosing::tell_withheld() {
  if (!ends_) return false;
  const auto untold = ends_->take_untold();
  if (untold.empty()) return false;
  ++stood_still_;
  ends_->hide_nothing();
  for (const auto& [microbatch, ranks] : untold) {
    for (const PpRank rank : ranks) core_.port.send(rank, Message(MicrobatchDone{microbatch}));
  }
  return true;
}

void ReplayedClosing::backward_asked(PpRank owner, const BackwardRequest& request) {
  if (!ends_) return;
  if (!request.only_inputs) ends_->asked(request.microbatch, owner);
  if (!request.keep_graph) ends_->record_gone(request.microbatch);
}

void ReplayedClosing::backward_not_begun(PpRank owner, int microbatch) noexcept {
  if (!ends_) return;
  ends_->not_begun(microbatch, owner);
  ends_->record_kept(microbatch);
}

void ReplayedClosing::record_kept(int microbatch) noexcept {
  if (ends_) ends_->record_kept(microbatch);
}

void ReplayedClosing::record_gone(int microbatch) noexcept {
  if (ends_) ends_->record_gone(microbatch);
}

// ---- the end -----------------------------------------------------------------------------------

/// Whoever has something new says it all the same.
void ReplayedClosing::finish(FinishGradients&& own, bool news) {
  if (core_.port.is_first()) return;
  const auto& step = *core_.step;
  step.task.require_same_facts(core_.port.name(PpRank(0)), step.ended->facts);
  if (!news) return;
  own.facts = step.task.facts;
  core_.port.send(PpRank(0), Message(std::move(own)));
}

/// The step has ended here, and only its outputs have not left yet.
void ReplayedClosing::on_message(PpRank source, const FinishGradients& message) {
  if (core_.port.is_first()) take_late_news(core_, recorded_, source, message);
}

void ReplayedClosing::complete(StepEnded& message) {
  message.replayed = true;
  message.facts = core_.step->task.facts;
}

void ReplayedClosing::note_end(StepEnded&) {
  if (core_.counters.replayed++ > 0) return;
  base::log(base::LogLevel::kInfo, "rank ", core_.port.name(), ": static_mode: from step ",
            core_.step->number, " on steps need no control messages");
}

void take_late_news(ServerCore& core, RecordedSteps& recorded, PpRank source,
                    const FinishGradients& message) {
  const auto from = core.port.name(source);
  static_cast<void>(core.copies.is_news(from, message.buffers));
  core.copies.note(from, message.buffers);
  if (message.in_order) core.scopes.modules.note_order_elsewhere();
  recorded.forget();
}

}  // namespace smp::server
