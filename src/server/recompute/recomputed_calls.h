// server/recompute/recomputed_calls.h: modules and code whose calls are regions.
#pragma once

#include "smp/detail/call.h"

namespace smp::server {

/// Marks a routed module: its calls keep their inputs, and compute the rest again. A call inside of
/// such a call is a part of it. Threads: the rank's.
class RecomputedCalls final : public CallWrapper {
 public:
  /// @param keep_random  whether a call outside of steps draws the same numbers again
  explicit RecomputedCalls(bool keep_random) : keep_random_(keep_random) {}
  bool applies(const RoutedBase& module) const override;
  Packet run(RoutedBase& module, const CallEntry& entry, Packet& arguments, Thunk plain) override;

 private:
  const bool keep_random_;
};

}  // namespace smp::server
