// server/requests/request_runner.cpp: see the header.
#include "server/requests/request_runner.h"

#include <utility>

namespace smp::server {

void RequestRunner::on_message(PpRank source, ForwardRequest&& request) {
  forward_.release(source, request.releases);
  forward_.on_message(source, std::move(request));
}

void RequestRunner::on_message(PpRank source, BackwardRequest&& request) {
  forward_.release(source, request.releases);
  backward_.on_message(source, std::move(request));
}

void RequestRunner::on_message(PpRank source, const ReleaseOutputs& message) {
  forward_.release(source, message.requests);
}

void RequestRunner::on_message(ReleaseRecord&& message) {
  core_.step->released.push_back(message.record);
  core_.server.wake.signal();
}

void RequestRunner::start(ForwardTask&& task, bool input_failed) {
  forward_.start(std::move(task), input_failed);
}

void RequestRunner::start(BackwardTask&& task, bool input_failed) {
  backward_.start(std::move(task), input_failed);
}

void RequestRunner::microbatch_done(int microbatch) {
  core_.step->admission.forward_done(microbatch);
  if (core_.step->weights.done_elsewhere(microbatch)) core_.end_microbatch(microbatch);
}

void RequestRunner::end_step() noexcept {
  forward_.clear();
  core_.step->admission.clear();
}

void RequestRunner::free_released() {
  for (const auto id : std::exchange(core_.step->released, {})) {
    if (const auto record = core_.step->records.take(id)) {
      core_.accumulator.mark_closed(record->execution);
      core_.step->admission.drop(record->microbatch);
    }
  }
}

}  // namespace smp::server
