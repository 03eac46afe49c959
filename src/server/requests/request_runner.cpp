// server/requests/request_runner.cpp: see the header.
#include "server/requests/request_runner.h"

#include <utility>

namespace smp::server {

RequestRunner::RequestRunner(ServerCore& core, FailureControl& failures)
    : core_(core),
      entry_(core),
      backward_(core, failures, entry_),
      forward_(core, failures, entry_, backward_.early()) {}

void RequestRunner::on_message(PpRank source, ForwardRequest&& request) {
  forward_.release(source, request.releases);
  forward_.on_message(source, std::move(request));
}

void RequestRunner::on_message(PpRank source, BackwardRequest&& request) {
  forward_.release(source, request.releases);
  backward_.on_message(source, std::move(request));
}

void RequestRunner::on_message(PpRank source, const PassOn& message) {
  forward_.on_message(source, message);
}

void RequestRunner::on_message(PassedOn&& message) {
  if (message.gradient) return backward_.on_message(std::move(message));
  forward_.on_message(std::move(message));
}

void RequestRunner::on_message(PpRank source, const ReleaseOutputs& message) {
  forward_.release(source, message.requests);
}

void RequestRunner::on_message(ReleaseRecord&& message) {
  core_.step->released.push_back(message.record);
  core_.server.wake.signal();
}

void RequestRunner::end_step() noexcept {
  forward_.clear();
  backward_.clear();
}

void RequestRunner::free_released() {
  for (const auto id : std::exchange(core_.step->released, {})) {
    if (const auto record = core_.step->records.take(id)) {
      core_.accumulator.mark_closed(record->execution);
      entry_.drop(record->microbatch);
    }
  }
}

}  // namespace smp::server
