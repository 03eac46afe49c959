// d2d/wires/ofi/ofi_tasks.cpp: what is free is used again, the last first.
#include "d2d/wires/ofi/ofi_tasks.h"

#include <algorithm>

#include "d2d/wires/ofi/ofi_loss.h"

namespace smp::d2d {

OfiTasks::OfiTasks(OfiEndpoint& endpoint, std::size_t frame_bytes, std::size_t most_frames)
    : endpoint_(endpoint) {
  const std::size_t to_send = std::min(most_frames, endpoint_.sends());
  const std::size_t to_receive = std::min(most_frames, endpoint_.receives());
  memory_.resize((to_send + to_receive) * frame_bytes);
  if (memory_.empty()) return;
  registration_ = endpoint_.register_source(memory_);
  for (std::size_t i = 0; i < to_send + to_receive; ++i) {
    auto& task = *tasks_.emplace_back(std::make_unique<OfiTask>());
    task.kind = i < to_send ? OfiTask::Kind::kFrame : OfiTask::Kind::kReceive;
    task.frame = std::span(memory_).subspan(i * frame_bytes, frame_bytes);
    (i < to_send ? free_frames_ : unposted_).push_back(&task);
  }
}

OfiTask& OfiTasks::free_write() {
  if (free_writes_.empty()) {
    auto& task = *tasks_.emplace_back(std::make_unique<OfiTask>());
    task.kind = OfiTask::Kind::kWrite;
    free_writes_.push_back(&task);
  }
  return *free_writes_.back();
}

void OfiTasks::note_started(OfiTask::Kind kind) noexcept {
  const bool is_frame = kind == OfiTask::Kind::kFrame;
  (is_frame ? free_frames_ : free_writes_).pop_back();
  ++(is_frame ? frames_in_flight_ : writes_in_flight_);
}

void OfiTasks::note_ended(OfiTask& task) {
  switch (task.kind) {
    case OfiTask::Kind::kFrame:
      --frames_in_flight_;
      return free_frames_.push_back(&task);
    case OfiTask::Kind::kReceive:
      return unposted_.push_back(&task);
    case OfiTask::Kind::kWrite:
      --writes_in_flight_;
      return free_writes_.push_back(&task);
  }
}

void OfiTasks::post_receives(OfiLoss& loss) {
  while (!unposted_.empty()) {
    auto& task = *unposted_.back();
    const auto status = endpoint_.receive(task.frame, registration_.descriptor(), task);
    if (status == OfiEndpoint::kLater) return;
    if (status != 0) return loss.note_failed(&task, OfiEndpoint::error_text(status));
    unposted_.pop_back();
  }
}

}  // namespace smp::d2d
