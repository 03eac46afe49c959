// d2d/collectives/sum_in_place.h: an all_reduce of many tensors where they lie, in three steps, so
// that several can be under way and something else be done meanwhile. Threads: the rank's thread
// only; call it from fibers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "d2d/collectives/collective.h"
#include "d2d/collectives/communicator.h"
#include "d2d/collectives/sum_parts.h"

namespace smp::d2d {

/// Makes each tensor the sum over all members, divided, with the same bits on all of them: every
/// element is summed in order of members at one place. The tensors stand for one row of elements,
/// of which every member sums up an equal part; or each has an owner, who alone gets its sum.
/// Nothing is put into one piece or copied but what comes from others: each member sends 2 (n-1)/n
/// of the tensors' bytes in 2 (n-1) messages.
///
/// All members make their sums of a lane in the same order; any number can be under way. Throws as
/// Communicator, and leaves the tensors half summed then.
class SumInPlace {
 public:
  /// Starts the sum: sends the others the parts that they add up.
  /// @param tensors  of one dtype, contiguous, on the CPU, alive and untouched until finish(); the
  ///                 same sizes on all members
  /// @param divisor  of the sum
  SumInPlace(const Communicator& members, const std::vector<at::Tensor>& tensors,
             std::int64_t divisor)
      : SumInPlace(members, SumParts(tensors, members.size()), divisor) {}
  /// Starts the sum of `parts`. Where tensors have owners, each member sends (n-1)/n of the bytes
  /// in n-1 messages if all own alike, and tensors that others own stay as they are.
  SumInPlace(const Communicator& members, SumParts parts, std::int64_t divisor);

  /// Sums up this member's part, and sends it to the others. Suspends until theirs have come.
  void add();
  /// Takes the sums of the others. Suspends until they have come, and nothing is read any more.
  void finish();

 private:
  using Pieces = SumParts::Pieces;

  Pieces take(CollectivePhase phase, int position);
  void add_all();
  void add_all_wide();

  Communicator members_;
  std::int64_t divisor_;
  SumParts parts_;
  Collective collective_;
};

}  // namespace smp::d2d
