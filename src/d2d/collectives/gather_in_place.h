// d2d/collectives/gather_in_place.h: members get each other's values of many tensors where they
// lie, in two steps, so that several are under way. Threads: the rank's thread only; call it from
// fibers.
#pragma once

#include "d2d/collectives/collective.h"
#include "d2d/collectives/communicator.h"
#include "d2d/collectives/sum_parts.h"

namespace smp::d2d {

/// Every tensor gets the values that it has on the member that owns it. Nothing is put into one
/// piece, and nothing copied but what comes from others: each member sends what it owns n-1 times,
/// in n-1 messages; one that owns nothing sends none.
///
/// All members make their gathers of a lane in the same order; any number can be under way. Throws
/// as Communicator, and has the values of some owners then.
class GatherInPlace {
 public:
  /// Starts the gather: sends the others what this member owns.
  /// @param parts  SumParts::of_owners(): contiguous, alive and untouched until finish(); the same
  ///               sizes on all members
  /// @param what   for messages and reports; outlives this
  GatherInPlace(const Communicator& members, SumParts parts, const char* what);

  /// Writes the values that others own; tensor versions (at::Tensor::_version) stay. Suspends until
  /// they have come, and nothing is read any more.
  void finish();

 private:
  Communicator members_;
  SumParts parts_;
  Collective collective_;
};

}  // namespace smp::d2d
