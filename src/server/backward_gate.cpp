// server/backward_gate.cpp: one event a waiting body.
#include "server/backward_gate.h"

namespace smp::server {

void BackwardGate::pass(schedule::StepProgress& progress, int microbatch) {
  const fiber::WaitReason reason{"the schedule to begin backward", "", -1, microbatch};
  fiber::Event turn;
  while (!closed_ && !progress.may_begin_backward(microbatch)) {
    waiting_[microbatch] = &turn;
    turn.wait(reason);
    waiting_.erase(microbatch);
  }
}

void BackwardGate::open(schedule::StepProgress& progress) {
  for (const int microbatch : progress.open_gate()) {
    const auto found = waiting_.find(microbatch);
    if (found != waiting_.end()) found->second->signal();
  }
}

void BackwardGate::open_all() noexcept {
  closed_ = true;
  for (auto& [microbatch, event] : waiting_) event->signal();
}

}  // namespace smp::server
