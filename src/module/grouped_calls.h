// module/grouped_calls.h: neighbouring calls that a Sequential makes, run as one.
#pragma once

#include <cstddef>

#include "base/check.h"
#include "smp/detail/call.h"

namespace smp::module {

/// What a Sequential's neighbouring calls on its own rank go through, several at a time. Calls of
/// the Sequential itself run as they are. Threads: the rank's.
class GroupedCalls : public CallWrapper {
 public:
  /// The most calls of a group; 0: any number.
  virtual std::size_t size() const noexcept = 0;
  /// True if calls made now are grouped.
  virtual bool groups() const = 0;
  /// Runs the modules [first, last) of `module`, as `plain` does.
  virtual Packet run_group(RoutedBase& module, std::size_t first, std::size_t last,
                           Packet& arguments, Thunk plain) = 0;

  bool applies(const RoutedBase&) const final { return false; }
  Packet run(RoutedBase&, const CallEntry&, Packet&, Thunk) final {
    SMP_ASSERT(false, "a call of a Sequential is not wrapped");
  }
};

}  // namespace smp::module
