// server/step/graph_turns.h: passes over records with a common graph, one after the other.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "fiber/scheduler.h"

namespace smp::server {

/// A forward and the backward passes with create_graph over it leave records that lead through the
/// same nodes. Calls of other ranks among these can be in one pass at a time only, and boundaries
/// keep the gradients of one. Threads: the rank's.
class GraphTurns {
 public:
  /// Holds the turn as long as it lives. Waits for it on the fiber, if another pass has it.
  class Turn {
   public:
    /// @param turns  nullptr: nobody shares the graph
    Turn(std::shared_ptr<GraphTurns> turns, const fiber::WaitReason& reason);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const std::shared_ptr<GraphTurns> turns_;
  };

 private:
  bool taken_ = false;
  std::vector<fiber::Event*> waiting_;  // in the order of coming
};

}  // namespace smp::server
