// server/step/call_places.h: places in the program of this rank's executions.
#pragma once

#include <optional>

#include "module/call_places.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Gives collectives of modules their places in the program. Threads: the rank's.
class CallPlaces final : public module::CallPlaces {
 public:
  explicit CallPlaces(const ServerCore& core) : core_(core) {}
  /// Returns another place at each call; nullopt outside of steps. @throws StepAborted  the step
  /// has failed, and no exception unwinds the stack already.
  std::optional<module::CallPlace> next() override;

 private:
  const ServerCore& core_;
};

}  // namespace smp::server
