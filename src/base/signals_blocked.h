// base/signals_blocked.h: threads of the library take no signals.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace smp::base {

/// While it lives, the calling thread takes no signals, and neither does a thread that it starts,
/// ever: whoever installed a handler expects it on a thread of the program's.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace smp::base
