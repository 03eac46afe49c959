// server/requests/request_entry.cpp: see the header.
#include "server/requests/request_entry.h"

#include <utility>

namespace smp::server {

void RequestEntry::enter(ForwardTask&& task) {
  if (core_.step->entry.holds(task)) return;
  const auto order = core_.priority(schedule::Phase::kForward, task.request.microbatch);
  core_.workers.launch(std::move(task), order);
}

void RequestEntry::drop(int microbatch) {
  core_.step->entry.drop(microbatch);
  start_entering();
}

void RequestEntry::forward_done(int microbatch) {
  core_.step->entry.forward_done(microbatch);
  start_entering();
}

void RequestEntry::microbatch_done(int microbatch) {
  if (core_.step->weights.done_elsewhere(microbatch)) end_microbatch(microbatch);
}

void RequestEntry::end_microbatch(int microbatch) {
  core_.accumulator.mark_microbatch_done(microbatch);
  core_.step->entry.microbatch_done(microbatch);
  start_entering();
}

void RequestEntry::start_entering() {
  if (!core_.in_good_step()) return;
  for (auto& task : core_.step->entry.take_entering()) enter(std::move(task));
}

}  // namespace smp::server
