// server/backward/executor.h: a backward executor over torch::autograd::Node that may suspend its
// fiber. LibTorch's own engine cannot be suspended, so a graph that contains remote calls is walked
// here (paper §4.1, App. B). Threads: the rank's thread, on any of its fibers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "server/graph/gradient_sink.h"
#include "server/graph/special_nodes.h"

namespace smp::server {

/// Counts of what one backward pass did; for tests and formulas.
struct BackwardStatistics {
  std::uint64_t nodes = 0;        ///< nodes evaluated
  std::uint64_t async_nodes = 0;  ///< of these, started
  std::uint64_t parks = 0;        ///< times the fiber was suspended
  int most_in_flight = 0;

  /// Counts a node that was started; `in_flight` are, with it.
  void count_started(int in_flight) noexcept {
    ++async_nodes;
    most_in_flight = std::max(most_in_flight, in_flight);
  }
};

/// Runs backward from `roots` with `gradients` (same length; undefined is allowed) on the calling
/// fiber, suspending it while only asynchronous work is left.
///
/// Order: ready nodes by descending sequence number, leaves first, as in LibTorch's engine; replies
/// of AsyncNodes are consumed in the order the nodes were started, once no local node is ready, so
/// that the order of every floating-point sum is independent of network timing. Error replies jump
/// the queue.
/// @param captures  edges whose incoming gradient is returned (same order); empty for backward().
///                  With options.accumulate everything is executed all the same.
/// @param sink      receives leaf gradients; nullptr: into `.grad` at once, as LibTorch does.
/// @throws whatever a node, a hook or an AsyncNode threw; late replies are then ignored.
variable_list run_backward(const edge_list& roots, variable_list gradients,
                           const BackwardOptions& options = {}, const edge_list& captures = {},
                           GradientSink* sink = nullptr, BackwardStatistics* statistics = nullptr);

/// The part of a backward pass that run_input_part() has left: gradients of leaves. Movable; empty
/// if there is nothing to do.
class WeightPart {
 public:
  WeightPart() noexcept;
  WeightPart(WeightPart&&) noexcept;
  WeightPart& operator=(WeightPart&&) noexcept;
  ~WeightPart();
  explicit operator bool() const noexcept { return state_ != nullptr; }
  /// Computes these gradients and frees the graph. Must be called once at most, on any fiber of the
  /// rank, in the modes of the first part.
  /// @throws whatever a node, a hook or the sink threw
  void run();

 private:
  friend WeightPart run_input_part(const edge_list& roots, variable_list gradients,
                                   const BackwardOptions& options, GradientSink* sink);
  struct State;
  explicit WeightPart(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

/// Runs run_backward(), but leaves what only leaves need to the part that is returned: nodes below
/// which there are only leaves, and, of a product or a convolution, the gradients of its weights
/// (server/backward/backward_pass.h). Both together give the bits of run_backward(); user code that
/// draws random numbers in the second part draws others. With options.keep_graph or in anomaly mode
/// nothing is left.
/// @param sink  outlives the returned part, and so does what `options` point to
/// @throws what run_backward() throws; nothing is left then
[[nodiscard]] WeightPart run_input_part(const edge_list& roots, variable_list gradients,
                                        const BackwardOptions& options,
                                        GradientSink* sink = nullptr);

}  // namespace smp::server
