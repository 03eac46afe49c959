// module/sink.cpp: from the running fiber to the sink that decides about its calls.
// Threads: current_call_sink is asked on any thread that calls a routed module.
#include "base/check.h"
#include "module/rank_sink.h"

namespace smp {

CallSink::~CallSink() = default;

CallSink* current_call_sink(const RoutedBase& module) {
  if (auto* rank = base::current_rank()) return static_cast<module::RankSink*>(rank);
  SMP_REQUIRE(module.smp_place.owner < 0 || module::steps_running() == 0, "smp: module '",
              module.smp_place.path, "' (", module.smp_type_name(),
              ") was called during a step on a thread that is not its rank's own, for example by "
              "std::async or std::thread. Call it in the step body or in another module.");
  return nullptr;
}

namespace module {

std::atomic<int>& steps_running() noexcept {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace module
}  // namespace smp
