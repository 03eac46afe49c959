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

/// They may come as long as this lives, on the stack of who waits. Threads: the rank's.
class OutputFetch final : public ResponseTarget {
 public:
  /// @param owner  runs `request`, of this rank, in the step of `core`
  OutputFetch(ServerCore& core, PpRank owner, RequestId request);
  ~OutputFetch();
  OutputFetch(const OutputFetch&) = delete;
  OutputFetch& operator=(const OutputFetch&) = delete;

  void ask(std::uint32_t output);
  /// Once. @return undefined if the request or the step failed
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
