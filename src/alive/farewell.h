// alive/farewell.h: the last line of a process that is asked to end: Ctrl-C, a batch system.
#pragma once

#include <cstdint>
#include <string>

#include "alive/end_signals.h"

namespace smp::base {

/// While one lives, SIGTERM and SIGINT print it (alive/end_signals.h). One at a time; of several
/// the latest is printed.
class Farewell {
 public:
  /// @param before, after  of the count: "12 steps are in ".
  Farewell(std::string before, std::string after);
  ~Farewell();
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;

  void set_count(std::int64_t count) noexcept;

 private:
  EndSignals signals_;
};

}  // namespace smp::base
