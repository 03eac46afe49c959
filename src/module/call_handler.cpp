// module/call_handler.cpp: from the running fiber to the handler that decides about its calls.
// Threads: current_call_handler is asked on any thread that calls a routed module.
#include "module/call_handler.h"

#include "alive/heartbeat.h"
#include "base/check.h"

namespace smp {

CallHandler::~CallHandler() = default;

CallHandler* current_call_handler(const RoutedBase& module) {
  if (auto* handler = module::call_handler().get()) {
    base::beat();
    return handler;
  }
  SMP_REQUIRE(!module.smp_place.placed() || module::steps_running() == 0, "smp: module '",
              module.smp_place.path, "' (", module.smp_type_name(),
              ") was called during a step on a thread that is not its rank's own, for example by "
              "std::async or std::thread. Call it in the step body or in another module.");
  return nullptr;
}

std::size_t joint_calls(CallHandler* handler,
                        c10::function_ref<const RoutedBase*(std::size_t)> neighbour) {
  const auto* last = handler == nullptr ? nullptr : neighbour(0);
  if (last == nullptr || handler->where(*last) != CallHandler::Where::kRemote) return 0;
  for (std::size_t joint = 1;; ++joint) {
    const auto* next = neighbour(joint);
    if (next == nullptr || !handler->joins(*last, *next)) return joint == 1 ? 0 : joint;
    last = next;
  }
}

namespace module {

const base::FiberLocal<CallHandler>& call_handler() {
  static const base::FiberLocal<CallHandler> handler;
  return handler;
}

std::atomic<int>& steps_running() noexcept {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace module
}  // namespace smp
