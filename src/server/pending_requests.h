// server/pending_requests.h: requests of this rank whose answer is not here yet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/message.h"

namespace smp::server {

/// Threads: the rank's. Callbacks run in a poll: they neither throw nor suspend.
class PendingRequests {
 public:
  /// Gets the response, or nothing if the step failed first.
  using Callback = std::function<void(std::optional<Message>&&)>;

  std::uint64_t add(Callback callback) {
    callbacks_.emplace(++last_, std::move(callback));
    return last_;
  }
  /// Forgets a request, because its callback's captures are about to die.
  void forget(std::uint64_t request) noexcept { callbacks_.erase(request); }
  /// Ignores answers nobody waits for: those of an earlier, failed step.
  void complete(Message&& response) {
    const auto found = callbacks_.find(response.request);
    if (found == callbacks_.end()) return;
    auto callback = std::move(found->second);
    callbacks_.erase(found);
    callback(std::move(response));
  }
  void abort_all() {
    auto callbacks = std::exchange(callbacks_, {});
    for (auto& [request, callback] : callbacks) callback(std::nullopt);
  }
  std::size_t size() const noexcept { return callbacks_.size(); }

 private:
  std::unordered_map<std::uint64_t, Callback> callbacks_;
  std::uint64_t last_ = 0;
};

}  // namespace smp::server
