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
  /// Called with a request when its forward has ended. `may_run` is false if it must be answered as
  /// not run, because the forward left no record or did not end as was promised.
  using Start = std::function<void(BackwardTask&& task, bool may_run)>;
  explicit EarlyRequests(Start start) : start_(std::move(start)) {}

  /// Adds a request for the backward of a loss, which starts when its forward has ended here.
  void add(BackwardTask&& task);
  /// Notes the record that forward `name` leaves, before it answers. `as_promised` is false if it
  /// ended otherwise than was promised.
  void note(const RequestName& name, RecordId record, bool as_promised);
  /// Notes that forward `name` has answered, or failed, and starts the request that waits for it.
  void ended(const RequestName& name);
  /// Returns the record of forward `name`; the empty id if there is none, or the forward did not
  /// end as was promised.
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
