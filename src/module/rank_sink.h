// module/rank_sink.h: the one kind of rank a fiber can belong to: it also serves module calls.
#pragma once

#include <atomic>

#include "base/fiber.h"
#include "smp/call.h"

namespace smp::module {

/// Every base::RankContext of a process is a RankSink, so "current rank" gives the current sink
/// without a look-up.
class RankSink : public base::RankContext, public CallSink {
 public:
  /// Whether smp::delay_param_initialization has an effect (the setting of that name).
  bool delays_parameters = true;
};

/// Steps running in this process; a routed call on a foreign thread is refused while it is not 0.
std::atomic<int>& steps_running() noexcept;

}  // namespace smp::module
