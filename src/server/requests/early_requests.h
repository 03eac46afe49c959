// server/requests/early_requests.h: at the owner: backward requests that name a forward request
// instead of its record, because they were made before that had answered (early_backward.h).
// Threads: the rank's; everything is safe in a poll.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "server/step/kept_outputs.h"
#include "server/step/worker_pool.h"

namespace smp::server {

class EarlyRequests {
 public:
  /// What a request does when its forward has ended: runs, or says that it did not, because the
  /// forward left no record, or one that its caller could not know.
  using Start = std::function<void(BackwardTask&& task, bool may_run)>;
  explicit EarlyRequests(Start start) : start_(std::move(start)) {}

  /// A request for the backward of a loss.
  void add(BackwardTask&& task);
  /// What forward `name` leaves, before it answers.
  void note(const RequestName& name, RecordId record, bool as_promised);
  /// It has answered, or failed.
  void ended(const RequestName& name);
  /// None: there is none, or the forward did not end as was promised.
  RecordId record_of(const RequestName& name) const;

  void clear() noexcept { forwards_.clear(); }

 private:
  struct Forward {
    RecordId record;
    bool ended = false;
    std::optional<BackwardTask> backward;  // that came before its end
  };

  const Start start_;
  std::map<RequestName, Forward> forwards_;
};

}  // namespace smp::server
