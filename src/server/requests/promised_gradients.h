// server/requests/promised_gradients.h: backward requests that have come before their gradients,
// which other ranks send (docs/design.md, Promised outputs). Threads: the rank's; everything is
// safe in a poll.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "server/protocol/message.h"
#include "server/step/kept_outputs.h"
#include "server/step/worker_pool.h"

namespace smp::server {

class PromisedGradients {
 public:
  /// Called with a request when all of its gradients have come. `input_failed` is true if one of
  /// them failed, so that the request must fail too.
  using Start = std::function<void(BackwardTask&& task, bool input_failed)>;
  explicit PromisedGradients(Start start) : start_(std::move(start)) {}

  /// Adds a request some of whose gradients are promised.
  void add(BackwardTask&& task);
  /// Takes one of these gradients, which may come before its request.
  void take(PassedOn&& message);

  std::size_t size() const noexcept { return waiting_.size() + too_early_.size(); }
  /// The requests that wait.
  std::vector<const BackwardTask*> waiting() const;
  void clear() noexcept;

 private:
  struct Waiting {
    BackwardTask task;
    std::size_t missing = 0;
    bool failed = false;
  };

  const Start start_;
  std::map<RequestName, Waiting> waiting_;
  std::map<RequestName, std::vector<PassedOn>> too_early_;
};

}  // namespace smp::server
