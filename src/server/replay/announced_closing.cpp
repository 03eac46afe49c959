// server/replay/announced_closing.cpp: all is told, and compared on pp_rank 0.
#include "server/replay/announced_closing.h"

#include <utility>

namespace smp::server {

void AnnouncedClosing::forward_done(int microbatch) {
  core_.port.send_to_others(ForwardDone{microbatch});
}

void AnnouncedClosing::microbatch_done(int microbatch) {
  core_.port.send_to_others(MicrobatchDone{microbatch});
}

/// No rank's step succeeds before the last hooks of all have run.
void AnnouncedClosing::finish(FinishGradients&& own, bool news) {
  if (!core_.port.is_first()) {
    own.facts = core_.step->task.facts;
    return core_.port.send(PpRank(0), Message(std::move(own)));
  }
  news_ |= news;
  core_.copies.note(core_.port.name(), own.buffers);
  core_.port.send_to_others(FinishGradients{});
}

void AnnouncedClosing::on_message(PpRank source, const FinishGradients& message) {
  const auto from = core_.port.name(source);
  if (core_.port.is_first()) {
    core_.step->task.require_same_facts(from, message.facts);
    news_ |= core_.copies.is_news(from, message.buffers) || message.in_order;
    if (message.in_order) core_.scopes.modules.note_order_elsewhere();
  }
  core_.copies.note(from, message.buffers);
  may_finish_ = true;
  ++ranks_finished_;
  core_.server.wake.signal();
}

void AnnouncedClosing::complete(StepEnded& message) { message.buffers = core_.copies.judge(); }

void AnnouncedClosing::note_end(StepEnded& message) {
  message.fastest =
      recorded_.ended(news_ || !message.buffers.empty(), kind_of_step(),
                      core_.step->task.microbatches, core_.clock.now() - core_.step->start);
}

RecordedSteps::Kind AnnouncedClosing::kind_of_step() const noexcept {
  using Kind = RecordedSteps::Kind;
  if (!core_.step->task.in_full) return Kind::kOther;
  return core_.step->work.has_backward() ? Kind::kTraining : Kind::kForward;
}

}  // namespace smp::server
