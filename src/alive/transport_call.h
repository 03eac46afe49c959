// alive/transport_call.h: whether the rank's thread is in a call of the transport, for the thread
// that looks on (alive/watchdog.h). Such calls wait for nothing, so one that does not return is
// broken: MPI over TCP may wait for ever for the other end of a connection that was cut.
#pragma once

#include <atomic>

namespace smp::base {

namespace detail {
inline std::atomic<bool> in_transport_call{false};
}

/// Marks a call of the transport while it lives. Threads: the rank's. Calls may nest, since a poll
/// may hand on a message whose receiver sends.
class TransportCall {
 public:
  TransportCall() noexcept { detail::in_transport_call.store(true, std::memory_order_relaxed); }
  ~TransportCall() { detail::in_transport_call.store(outer_, std::memory_order_relaxed); }
  TransportCall(const TransportCall&) = delete;
  TransportCall& operator=(const TransportCall&) = delete;

 private:
  const bool outer_ = detail::in_transport_call.load(std::memory_order_relaxed);
};

/// True while the rank's thread is in a call of the transport. Any thread.
inline bool in_transport_call() noexcept {
  return detail::in_transport_call.load(std::memory_order_relaxed);
}

}  // namespace smp::base
