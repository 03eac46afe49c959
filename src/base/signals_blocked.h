// base/signals_blocked.h: threads of the library take no signals.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace smp::base {

/// While it lives, the calling thread takes no signals. A thread started meanwhile never takes any:
/// whoever installed a handler expects it to run on one of the program's threads.
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
