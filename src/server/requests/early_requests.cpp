// server/requests/early_requests.cpp: whoever comes first, the end of the forward or the request,
// waits.
#include "server/requests/early_requests.h"

namespace smp::server {

void EarlyRequests::add(BackwardTask&& task) {
  auto& forward = forwards_[{task.source, task.request.early->forward}];
  if (!forward.ended) {
    forward.backward = std::move(task);
    return;
  }
  start_(std::move(task), static_cast<bool>(forward.record));
}

void EarlyRequests::note(const RequestName& name, RecordId record, bool as_promised) {
  forwards_[name].record = as_promised ? record : RecordId();
}

void EarlyRequests::ended(const RequestName& name) {
  auto& forward = forwards_[name];
  forward.ended = true;
  auto backward = std::exchange(forward.backward, std::nullopt);
  if (backward) start_(*std::move(backward), static_cast<bool>(forward.record));
}

RecordId EarlyRequests::record_of(const RequestName& name) const {
  const auto found = forwards_.find(name);
  return found == forwards_.end() ? RecordId() : found->second.record;
}

}  // namespace smp::server
