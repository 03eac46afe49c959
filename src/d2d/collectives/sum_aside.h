// d2d/collectives/sum_aside.h: a sum of many tensors that is made while nobody knows yet whether it
// will be wanted. Threads: the rank's thread only; call it from fibers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "d2d/collectives/collective.h"
#include "d2d/collectives/communicator.h"
#include "d2d/collectives/sum_parts.h"

namespace smp::d2d {

/// Converts the parts of a sum into what is sent for them.
class SumCodec {
 public:
  virtual ~SumCodec() = default;
  /// Returns the tensors that travel instead of `pieces`, those of the part at `position`; nobody
  /// writes to their memory any more.
  /// @param sum  true on the way back, when the pieces are sums
  virtual std::vector<at::Tensor> encode(const SumParts::Pieces& pieces, int position,
                                         bool sum) = 0;
  /// Returns pieces of the shapes of `like`, in memory that nobody else writes to.
  virtual SumParts::Pieces decode(const std::vector<at::Tensor>& encoded,
                                  const SumParts::Pieces& like, int position, bool sum) = 0;
};

/// The same sums as SumInPlace, to the same bits, but kept aside until write(): before, the tensors
/// are only read. It may be given up at any time, by all members or by some; then others must not
/// wait for it. In a lane of its own, in which collectives are numbered by the caller, a member may
/// leave out numbers (Communicator::leave_out). Takes memory for the tensors' bytes once more.
/// Throws as Communicator.
class SumAside {
 public:
  /// Starts the sum: sends the others the parts that they add up. Does not suspend.
  /// @param tensors  of one dtype, contiguous, on the CPU, alive until this ends, and untouched
  ///                 unless it is given up; the same sizes on all members
  /// @param divisor  of the sum
  /// @param number   of this collective in the lane of `members`, higher than those before
  /// @param codec    nullptr: parts travel as they are; else outlives this
  SumAside(const Communicator& members, const std::vector<at::Tensor>& tensors,
           std::int64_t divisor, std::uint64_t number, SumCodec* codec = nullptr)
      : SumAside(members, SumParts(tensors, members.size()), divisor, number, codec) {}
  /// Starts the sum of `parts`. Where tensors have owners, sums take memory for what is owned here
  /// only, and tensors that others own are never written.
  SumAside(const Communicator& members, SumParts parts, std::int64_t divisor, std::uint64_t number,
           SumCodec* codec = nullptr);

  /// Lets `event`, which outlives this, be signalled whenever something arrives.
  void watch(fiber::Event& event) { collective_.watch(event); }
  /// True if add() would not suspend.
  bool can_add() const;
  bool added() const noexcept { return added_; }
  /// Sums up this member's part, once, and sends it to those who get it. Suspends until the terms
  /// of the others have come.
  void add();
  /// Takes the sums of the others, after add(), and writes all into the tensors. Suspends until
  /// they have come, and nothing is read any more.
  void write();

 private:
  using Pieces = SumParts::Pieces;

  void send(CollectivePhase phase, int position, const Pieces& pieces);
  Pieces take(CollectivePhase phase, int position);
  Pieces own_term();
  Pieces sum_of_all();
  void send_sum();

  Communicator members_;
  std::int64_t divisor_;
  SumCodec* codec_;
  SumParts parts_;
  Pieces sum_;  // of this member's part, once added
  bool added_ = false;
  Collective collective_;
};

}  // namespace smp::d2d
