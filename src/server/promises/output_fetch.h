// server/promises/output_fetch.h: the values of one output of a request that did not come with its
// answer (docs/design.md, Promised outputs).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "fiber/scheduler.h"
#include "server/protocol/message.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Takes the values of one output as long as it lives, on the stack of the fiber that waits for
/// them. Threads: the rank's.
class OutputFetch final : public ResponseTarget {
 public:
  /// @param owner  the rank that runs `request`, which this rank made in the running step
  OutputFetch(ServerCore& core, PpRank owner, RequestId request);
  ~OutputFetch();
  OutputFetch(const OutputFetch&) = delete;
  OutputFetch& operator=(const OutputFetch&) = delete;

  void ask(std::uint32_t output);
  /// Suspends until the values are here. Called once, after ask(). @return the values; undefined if
  /// the request or the step failed
  at::Tensor wait(const fiber::WaitReason& reason);

 private:
  void on_forward(ForwardResponse&&) noexcept override { arrived_.signal(); }
  void on_backward(BackwardResponse&&) noexcept override { arrived_.signal(); }
  void on_error(Failure&&) noexcept override { arrived_.signal(); }
  void on_abort() noexcept override { arrived_.signal(); }
  void on_passed_on(PassedOn&& message) noexcept override;

  ServerCore& core_;
  const PpRank owner_;
  const RequestId request_;
  RequestId id_;
  fiber::Event arrived_;
  std::optional<PassedOn> message_;
};

}  // namespace smp::server
