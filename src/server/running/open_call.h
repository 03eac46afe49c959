// server/running/open_call.h: a remote call that returned before it ended (docs/design.md, Promised
// outputs). Threads: the rank's.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::server {

/// A remote call of an execution that may not have ended (promised_outputs.h).
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  /// Suspends until the call has ended; its autograd history is final then. @throws what the call
  /// threw, unless that was thrown before.
  virtual void finish() = 0;
  /// Suspends until the values of its promised tensors that somebody still holds are here.
  virtual void fetch_all() = 0;
  /// Gives the call up: nobody will wait for it.
  virtual void abandon() noexcept = 0;
  /// True if its answer is here and is no exception.
  virtual bool has_answered() const noexcept = 0;
  /// The autograd node on which its results hang until it has answered; nullptr if they need no
  /// gradient.
  virtual const torch::autograd::Node* history() const noexcept = 0;
};

}  // namespace smp::server
