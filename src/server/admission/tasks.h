// server/admission/tasks.h: what workers do: bodies, and what other ranks ask for; who starts it.
#pragma once

#include <variant>

#include "server/protocol/ids.h"
#include "server/protocol/message.h"

namespace smp::server {

/// The body of one microbatch.
struct BodyTask {
  int microbatch = -1;
};
struct ForwardTask {
  PpRank source;
  ForwardRequest request;
  ExecutionId execution;
};
struct BackwardTask {
  PpRank source;
  BackwardRequest request;
};
/// What a worker does; not std::function, so that starting one allocates nothing.
using WorkerTask = std::variant<BodyTask, ForwardTask, BackwardTask>;

/// What requests do that may start. Called in polls.
class RequestStarter {
 public:
  /// It runs, or fails if something promised to it did.
  virtual void start(ForwardTask&& task, bool input_failed) = 0;
  /// Also fails if its forward left no record, or one that its caller could not know.
  virtual void start(BackwardTask&& task, bool input_failed) = 0;
  /// A request waits for this output of its own rank.
  virtual void ask(PpRank caller, const PassOn& output) = 0;

 protected:
  ~RequestStarter() = default;
};

}  // namespace smp::server
