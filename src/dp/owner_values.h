// dp/owner_values.h: replicas get the values that parameters have on those that step them
// (paper App. H.1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "d2d/collectives/communicator.h"
#include "d2d/collectives/gather_in_place.h"
#include "dp/bucket_rows.h"

namespace smp::dp {

/// Broadcasts the values of parameters from their owners in rounds, of which two may be under way:
/// while the values of one are written, the next travel. More at once would take memory for what
/// comes from others. Threads: the rank's.
class OwnerValues {
 public:
  /// @param round_bytes  of tensors that travel together
  explicit OwnerValues(std::int64_t round_bytes) : round_bytes_(round_bytes) {}

  /// Starts to give each of `tensors` the values that it has on its owner, which sends them n-1
  /// times for n replicas. The tensors are untouched until finish(). All members pass tensors of
  /// the same shapes and dtypes, in the same order. Suspends.
  /// @param owners  positions in `replicas`, one for each tensor; -1: its values stay
  /// @throws UnsupportedError  a tensor is sparse or quantised.
  /// @throws as d2d::Communicator, with a member that left or that makes another call.
  void take(const d2d::Communicator& replicas, const std::vector<at::Tensor>& tensors,
            const std::vector<int>& owners);
  /// Waits until all values have come and are written. Suspends. @throws as take()
  void finish();

 private:
  /// The tensors that travel in one collective.
  class Round {
   public:
    Round(const d2d::Communicator& replicas, std::vector<at::Tensor> tensors,
          std::vector<int> owners);
    void finish();

   private:
    const std::vector<at::Tensor> taken_;  // that others own
    BucketRows rows_;
    d2d::GatherInPlace gather_;
  };
  void finish_first();

  const std::int64_t round_bytes_;
  std::deque<Round> under_way_;
};

}  // namespace smp::dp
