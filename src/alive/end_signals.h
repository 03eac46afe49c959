// alive/end_signals.h: a process that is asked to end, by Ctrl-C, a batch system or a launcher that
// lost another rank, has something to say first.
#pragma once

namespace smp::base {

/// While one lives, SIGTERM and SIGINT say what is known of the end before they end the process,
/// where they would end it: a program's own handlers stay. Ranks of this machine that are gone
/// without a word are named, by one of those that look. Also shows in own_pulse() whether the
/// process ends. Any thread.
class EndSignals {
 public:
  EndSignals();
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;
};

/// Runs in the handler, last: only what is safe there. nullptr: nothing does.
void set_last_line(void (*print)() noexcept) noexcept;

}  // namespace smp::base
