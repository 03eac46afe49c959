// server/calls/early_backward.h: the backward of a loss that a remote module has promised is asked
// for before the loss is there (docs/design.md, Promised outputs).
#pragma once

#include <memory>
#include <vector>

#include "fiber/scheduler.h"
#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "server/backward/gradient_chain.h"
#include "server/running/execution_scope.h"

namespace smp::server {

/// The gradient of a loss is a number that its caller knows without the loss. So where the loss is
/// a promise, the requests for its backward, and for all that follows from it alone, go out at
/// once: each owner goes on with the backward when the forward has ended there, and no stage waits
/// for the caller. The caller's own pass follows as ever; what was begun early it finds begun.
///
/// It is all or nothing: if a call of the chain turns out otherwise than was promised (its result
/// is an argument, say), the loss's owner does not begin, so none of the others do, and the pass
/// does everything. Threads: the rank's; lives on the stack of the body's fiber.
class EarlyBackward {
 public:
  /// Sends the requests for the backward of `loss`; does not suspend. Returns nullptr if the
  /// backward has to wait: the value of `loss` is here, some hook wants to see its gradient, or
  /// calls outside of the chain still run, so that the forward of the microbatch is not over when
  /// the loss is there.
  /// @param scope   the execution of the body
  /// @param weight  the gradient of `loss`
  [[nodiscard]] static std::unique_ptr<EarlyBackward> begin(const at::Tensor& loss, double weight,
                                                            const BackwardOptions& options,
                                                            ExecutionScope& scope);
  ~EarlyBackward();
  EarlyBackward(const EarlyBackward&) = delete;
  EarlyBackward& operator=(const EarlyBackward&) = delete;

  /// Suspends until the owner of the loss has answered, or the step failed. @return true if it ran
  /// the backward; the caller's own backward pass must follow then
  bool was_begun();

 private:
  EarlyBackward(std::vector<ChainLink> chain, const BackwardOptions& options);
  void leave() noexcept;

  const std::vector<ChainLink> chain_;
  const NodePointer<AsyncNode> first_;  // holds all of them: the loss may turn out to be another's
  fiber::Event answered_;
  bool decided_ = false;
};

}  // namespace smp::server
