// alive/writing.h: ranks that end wait for one that writes files, even if an exception unwinds
// them.
#pragma once

#include "base/clock.h"

namespace smp::base {

/// While an object lives, the ranks of this machine see that this one writes what its run leaves.
/// Any thread.
class Writing {
 public:
  Writing() noexcept;
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
};

/// The end of a wait for other ranks: after `patience`, or while one of this machine writes, a
/// minute later.
class EndOfPatience {
 public:
  explicit EndOfPatience(Nanoseconds patience) noexcept;
  bool has_come() const noexcept;

 private:
  const SteadyClock clock_;
  const Nanoseconds end_;
};

}  // namespace smp::base
