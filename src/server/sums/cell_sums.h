// server/sums/cell_sums.h: the sum of what one microbatch gives to one parameter, and when it is
// complete (docs/design.md, Accumulation). Threads: the rank's.
#pragma once

#include <cstdint>
#include <optional>

#include "server/sums/microbatch_gradients.h"
#include "server/sums/parameter_numbers.h"
#include "server/sums/reached_leaves.h"
#include "server/sums/waiting_gradients.h"

namespace smp::server {

/// Sums gradients cell by cell (microbatch, parameter), in descending order key of the executions
/// that gave them. Nothing is passed twice, whatever the order of arrival.
class CellSums {
 public:
  /// `numbers` outlives this object.
  explicit CellSums(ParameterNumbers& numbers) : numbers_(numbers), reached_(numbers) {}

  /// Starts a step: counts begin at 0.
  void begin() noexcept;
  /// The gradients that wait, here or for the turn of their microbatch.
  WaitingGradients& waiting() noexcept { return waiting_; }
  const WaitingGradients& waiting() const noexcept { return waiting_; }

  MicrobatchGradients::Cell& at(MicrobatchGradients& microbatch, ParameterNumber number);
  /// Takes a gradient for `leaf`, which has this `number`. Grad mode is that of the pass.
  /// @return true if it is the first of its cell
  bool put(MicrobatchGradients& microbatch, ParameterNumber number,
           torch::autograd::AccumulateGrad& leaf, Contribution&& contribution);
  /// Finds out which executions reach which parameters: once per microbatch, when its forward is
  /// done and this must be known.
  void plan(MicrobatchGradients& microbatch);
  /// Passes executions that have delivered or closed, and sums their gradients; returns true if it
  /// has passed all, else registers the cell with the first that it cannot pass. Must follow
  /// plan().
  bool advance(MicrobatchGradients& microbatch, ParameterNumber number);
  /// Takes the sum of a cell out; nullopt if nothing was given to it. Its bytes are counted until
  /// WaitingGradients::leave().
  std::optional<LeafSum> take(MicrobatchGradients& microbatch, ParameterNumber number);

  /// Counts of the work done since begin(); for tests.
  struct Effort {
    std::uint64_t pairs = 0;  ///< looks at whether an execution still owes a parameter a gradient
    std::uint64_t walks = 0;  ///< graphs walked, at most one an execution
  };
  const Effort& effort() const noexcept { return effort_; }

 private:
  static constexpr std::uint32_t kNone = MicrobatchGradients::kNone;

  bool absorb_through(const MicrobatchGradients& microbatch, const MicrobatchGradients::Cell& cell,
                      std::uint32_t place);

  ParameterNumbers& numbers_;
  WaitingGradients waiting_;
  ReachedLeaves reached_;  // of plan(), kept for its arrays
  Effort effort_;
};

}  // namespace smp::server
