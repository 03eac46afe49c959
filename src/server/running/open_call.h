// server/running/open_call.h: a remote call that returned before it ended (docs/design.md, Promised
// outputs). Threads: the rank's.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace smp::server {

/// A remote call of an execution that may not have ended (promised_outputs.h).
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  /// Waits for its end; then its history is what it will be. @throws what it threw, unless that was
  /// thrown before.
  virtual void finish() = 0;
  /// Waits for the values of promised tensors that somebody still has.
  virtual void fetch_all() = 0;
  /// Nobody will wait for it.
  virtual void abandon() noexcept = 0;
  /// Its answer is here, and no exception.
  virtual bool has_answered() const noexcept = 0;
  /// On which its results hang until then; nullptr: they need no gradient.
  virtual const torch::autograd::Node* history() const noexcept = 0;
};

}  // namespace smp::server
