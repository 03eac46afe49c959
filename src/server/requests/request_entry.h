// server/requests/request_entry.h: when what other ranks ask of a microbatch may begin here.
#pragma once

#include "server/step/server_core.h"

namespace smp::server {

/// Lets forward requests in as their microbatches may enter this rank (entry_gate.h), and learns
/// what a microbatch has left here. Threads: the rank's; everything is safe in a poll.
class RequestEntry {
 public:
  explicit RequestEntry(ServerCore& core) : core_(core) {}

  /// Launches `task` once its microbatch may enter this rank.
  void enter(ForwardTask&& task);
  /// Notes that work of the microbatch has ended here, or a record of it is gone.
  void drop(int microbatch);
  /// Take what pp_rank 0 says: the microbatch's forward is done on all ranks, or its body has
  /// ended. The microbatch ends here once no weight part of it is left.
  void forward_done(int microbatch);
  void microbatch_done(int microbatch);
  /// Ends the microbatch on this rank, because nothing of it is left here or elsewhere.
  void end_microbatch(int microbatch);

 private:
  void start_entering();

  ServerCore& core_;
};

}  // namespace smp::server
