// server/step/backward_gate.cpp: bodies wait here for the schedule.
#include "server/step/backward_gate.h"

namespace smp::server {

void BackwardGate::pass(schedule::StepProgress& progress, int microbatch) {
  const fiber::WaitReason reason{"the schedule to begin backward", "", -1, microbatch};
  while (!closed_ && !progress.may_begin_backward(microbatch)) waiting_.wait(microbatch, reason);
}

void BackwardGate::open(schedule::StepProgress& progress) {
  for (const int microbatch : progress.open_gate()) {
    waiting_.wake([microbatch](int waiter) { return waiter == microbatch; });
  }
}

void BackwardGate::open_all() noexcept {
  closed_ = true;
  waiting_.wake_all();
}

}  // namespace smp::server
