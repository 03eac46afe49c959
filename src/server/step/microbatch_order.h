// server/step/microbatch_order.h: modules that one microbatch after the other may enter, in the
// order of one process.
#pragma once

#include <vector>

#include "server/step/waiting_fibers.h"

namespace smp::server {

/// The turns of microbatches in one step on one rank. A microbatch has its turn when the forward
/// passes of all lower ones are done, so whoever waits here waits for a lower microbatch: never in
/// a circle. Threads: the rank's.
class MicrobatchOrder {
 public:
  explicit MicrobatchOrder(int microbatches)
      : done_(static_cast<std::size_t>(microbatches), false) {}

  /// Notes that `microbatch` makes no more calls that belong to its forward pass. May be called
  /// repeatedly; safe in a poll.
  void forward_done(int microbatch) noexcept;
  bool has_turn(int microbatch) const noexcept { return closed_ || microbatch <= turn_; }
  /// Suspends the running fiber until `microbatch` has its turn, or open_all() is called.
  /// @param module_path  for reports; outlives the wait
  void pass(int microbatch, const char* module_path);
  /// Notes that `microbatch` enters module number `module`, and returns the highest microbatch that
  /// did so far. If that is higher than `microbatch`, this one comes too late.
  int enter(int module, int microbatch);
  /// Wakes all fibers because the step failed; from then on every microbatch has its turn.
  void open_all() noexcept;

 private:
  std::vector<bool> done_;    // by microbatch
  int turn_ = 0;              // all below have done their forward pass
  bool closed_ = false;       // by open_all(): for good
  WaitingFibers waiting_;     // of a microbatch each
  std::vector<int> highest_;  // by module; -1: none
};

}  // namespace smp::server
