// server/step/call_places.h: places in the program of this rank's executions.
#pragma once

#include <optional>

#include "module/call_places.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Threads: the rank's.
class CallPlaces final : public module::CallPlaces {
 public:
  explicit CallPlaces(const ServerCore& core) : core_(core) {}
  /// @throws StepAborted  the step has failed, and nothing unwinds.
  std::optional<module::CallPlace> next() override;

 private:
  const ServerCore& core_;
};

}  // namespace smp::server
