// alive/running_call.cpp: see the header.
#include "alive/running_call.h"

#include <cstdio>

namespace smp::server {

RunningCall running_call;

void RunningCall::describe(char* text, std::size_t size) const noexcept {
  const char* const path = path_.load(std::memory_order_acquire);
  const auto& pulse = base::own_pulse();
  if (path == nullptr) {
    const int rank = pulse.rank;
    std::snprintf(text, size, rank < 0 ? "" : "rank %d, before its first module", rank);
    return;
  }
  std::snprintf(text, size, "rank %d%smodule %s (%s), microbatch %d", rank_.load(),
                pulse.running ? ", " : ", between modules; the last was ", shown(path),
                pulse.backward ? "backward" : "forward", pulse.microbatch.load());
}

}  // namespace smp::server
