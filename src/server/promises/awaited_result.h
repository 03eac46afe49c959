// server/promises/awaited_result.h: a remote call whose caller waits for its answer, on his stack.
// Threads: the rank's.
#pragma once

#include <optional>
#include <utility>

#include "base/check.h"
#include "fiber/scheduler.h"
#include "server/protocol/message.h"
#include "server/running/turn_taker.h"
#include "server/step/server_core.h"

namespace smp::server {

/// The answer to a forward request. After wait(), which suspends the fiber, either `response` or
/// `failure` is set, or neither because the step was aborted.
class AwaitedResult final : public ResponseTarget {
 public:
  std::optional<ForwardResponse> response;
  std::optional<Failure> failure;

  void wait(const fiber::WaitReason& reason) {
    await_answer(arrived_, reason);
    SMP_ASSERT(!misplaced_, reason.module_path, ": a backward answer to a forward request");
  }

 private:
  void on_forward(ForwardResponse&& answer) noexcept override {
    response = std::move(answer);
    arrived_.signal();
  }
  void on_backward(BackwardResponse&&) noexcept override {
    misplaced_ = true;
    arrived_.signal();
  }
  void on_error(Failure&& error) noexcept override {
    failure = std::move(error);
    arrived_.signal();
  }
  void on_abort() noexcept override { arrived_.signal(); }

  fiber::Event arrived_;
  bool misplaced_ = false;
};

/// Registers a request in the step's table while it lives, on the caller's stack; its answer goes
/// to `target`.
class OpenRequest {
 public:
  OpenRequest(ServerCore& core, ResponseTarget& target)
      : core_(core), id_(core.step->requests.add(&target)) {}
  ~OpenRequest() { core_.step->requests.take(id_); }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;
  RequestId id() const noexcept { return id_; }

 private:
  ServerCore& core_;
  RequestId id_;
};

}  // namespace smp::server
