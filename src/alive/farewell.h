// alive/farewell.h: the last line of a process that is asked to end: Ctrl-C, a batch system.
#pragma once

#include <cstdint>
#include <string>

#include "alive/end_signals.h"

namespace smp::base {

/// While an object lives, SIGTERM and SIGINT print its line to stderr before they end the process
/// (alive/end_signals.h). Use one at a time; of several the latest is printed.
class Farewell {
 public:
  /// @param before, after  the texts before and after the count, such as " steps are in runs/7"
  Farewell(std::string before, std::string after);
  ~Farewell();
  Farewell(const Farewell&) = delete;
  Farewell& operator=(const Farewell&) = delete;

  void set_count(std::int64_t count) noexcept;

 private:
  EndSignals signals_;
};

}  // namespace smp::base
