// alive/exit_watch.h: a program that has failed does not exit as if it had not. Launchers look at
// the lowest byte of an exit code only: 256 is a success to them.
#pragma once

namespace smp::base {

/// Notes that this process has failed: if its program exits with 0, or another multiple of 256, the
/// exit code is 1. Any thread.
void note_failure() noexcept;
/// Takes that back, because a later step has succeeded. Any thread.
void forgive_failure() noexcept;

/// Lives as long as a session. If an exception unwinds it, the process has failed; so it has if the
/// program calls exit() meanwhile, which is said: others wait for this rank in vain. Forked
/// children are not concerned.
class ExitWatch {
 public:
  ExitWatch() noexcept;
  ~ExitWatch();
  ExitWatch(const ExitWatch&) = delete;
  ExitWatch& operator=(const ExitWatch&) = delete;

 private:
  const int exceptions_at_start_;
};

}  // namespace smp::base
