// server/backward/reply_queue.h: replies of the AsyncNodes that a backward pass has started, handed
// out in the order of their places whatever the order of arrival. Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>

#include "fiber/scheduler.h"
#include "server/backward/backward_graph.h"
#include "server/backward/executor.h"

namespace smp::server {

/// The reply of an AsyncNode: its gradients, or the exception that it threw.
struct Reply {
  NodeIndex node = kNoNode;
  variable_list gradients;
  std::exception_ptr error;
  bool arrived = false;
  bool wanted = true;  ///< false: nothing is done with it
  bool taken = false;
  std::size_t next = 0;  ///< number of the reply after it
};

/// Completions may outlive the queue: they are ignored once it is gone.
class ReplyQueue {
 public:
  ReplyQueue() = default;
  ReplyQueue(const ReplyQueue&) = delete;
  ReplyQueue& operator=(const ReplyQueue&) = delete;
  ~ReplyQueue();

  /// Appends a place for the reply of `node` and returns the completion that fills it.
  Completion expect(NodeIndex node);
  /// Does what expect() does, but without a place: the reply gets one, and is in flight, only with
  /// enqueue().
  Completion expect_later(NodeIndex node);
  void enqueue(NodeIndex node, bool wanted);
  /// The number of replies with a place that were not taken yet.
  int in_flight() const noexcept;
  /// The node whose reply comes next.
  NodeIndex next() const noexcept;
  /// Takes an error, if one has arrived, else the oldest reply, if that has; nullopt if there is
  /// neither.
  std::optional<Reply> take();
  /// Suspends the fiber until take() has something. At least one reply must be in flight.
  void wait(const fiber::WaitReason& reason);

 private:
  std::shared_ptr<Completion::Replies>
      state_;  // made by the first expect(): local graphs need no fibers
};

}  // namespace smp::server
