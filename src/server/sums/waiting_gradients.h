// server/sums/waiting_gradients.h: gradients that wait for their turn: to be added to a sum, or as
// a sum to enter `.grad` (docs/design.md, Accumulation). Threads: the rank's.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/sums/leaf_update.h"
#include "server/sums/microbatch_gradients.h"

namespace smp::server {

/// The gradient that one pass over an execution gave to one leaf.
struct Contribution {
  std::uint32_t execution;
  std::uint64_t arrival;
  at::Tensor gradient;
};

/// The sums of all cells, by number, and the bytes of all gradients that wait, those outside of
/// these sums as well. Nothing but tensors is allocated once the arrays have grown.
class WaitingGradients {
 public:
  /// Starts a step: most_bytes() counts from now on.
  void begin() noexcept { most_bytes_ = 0; }
  /// Forgets all gradients, and keeps the arrays.
  void clear() noexcept;

  /// Opens a sum for `leaf`. @return its number, valid until take()
  std::uint32_t open(torch::autograd::AccumulateGrad& leaf);
  /// Lets a contribution to sum `number` of `microbatch` wait. Grad mode is that of the pass.
  void put(std::uint32_t number, const MicrobatchGradients& microbatch,
           Contribution&& contribution);
  /// Orders the waiting contributions of a sum, now that the places of executions are known.
  void sort(std::uint32_t number, const MicrobatchGradients& microbatch);
  /// Adds what came from the executions up to `place`. @return true if the execution at `place`
  /// gave something
  bool absorb_through(std::uint32_t number, const MicrobatchGradients& microbatch,
                      std::uint32_t place);
  /// Takes sum `number`, which is complete, out. Its bytes are counted until leave().
  LeafSum take(std::uint32_t number);
  /// The number of sums that were opened and not taken.
  std::size_t num_open() const noexcept { return sums_.size() - free_.size(); }

  /// Adds up the gradients that followed the first backward, so that MicrobatchGradients::rest has
  /// one sum per parameter.
  void sum_up_rest(MicrobatchGradients& microbatch);

  /// Counts the bytes of `gradient`, which is about to wait, here or in MicrobatchGradients::rest.
  void arrive(const at::Tensor& gradient) noexcept;
  /// Stops counting the bytes of `sum`, which waits no longer.
  void leave(const LeafSum& sum) noexcept;
  /// Updates most_bytes(). Called when a gradient that arrived has found its place.
  void note_most() noexcept;
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t most_bytes() const noexcept { return most_bytes_; }

 private:
  struct PartialSum {
    LeafSum sum;                        // of what was passed
    std::vector<Contribution> waiting;  // heap: the one to be added first is in front
  };

  void add(LeafSum& sum, at::Tensor&& gradient);

  std::vector<PartialSum> sums_;
  std::vector<std::uint32_t> free_;
  std::size_t bytes_ = 0;
  std::size_t most_bytes_ = 0;  // since begin()
};

}  // namespace smp::server
