// alive/end_signals.h: a process that is asked to end, by Ctrl-C, a batch system or a launcher that
// lost another rank, has something to say first.
#pragma once

namespace smp::base {

/// While an object lives, the process prints what is known about its end when SIGTERM or SIGINT is
/// about to end it; a program's own handlers stay in place. Names the ranks of this machine that
/// are gone without a word (name_gone_ranks()). Also shows in own_pulse() whether the process ends.
/// A forked child says nothing of this. Any thread.
class EndSignals {
 public:
  EndSignals();
  ~EndSignals();
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;
};

/// Sets a function that the handler calls last; it may do only what is safe in a signal handler.
/// nullptr for none.
void set_last_line(void (*print)() noexcept) noexcept;

}  // namespace smp::base
