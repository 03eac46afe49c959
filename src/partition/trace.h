// partition/trace.h: what one microbatch makes a model do, as plain data (paper App. C.1, §4.11).
#pragma once

#include <cstdint>
#include <vector>

namespace smp::partition {

/// One call of a routed module. The time of a call and of its callees interleave: the caller
/// computes, calls, computes, calls, computes. Times are of the forward pass, in seconds.
struct TracedCall {
  int module = 0;   ///< index in ModuleTree::nodes
  int caller = -1;  ///< index in Trace::calls; -1: the step body
  /// What the caller itself computed between its previous call, or its start, and this call.
  double before = 0;
  /// What this call itself computed after its last own call; all of its time if it makes none.
  double after = 0;
  std::int64_t input_bytes = 0;   ///< tensors that travel to the module if it lives elsewhere
  std::int64_t output_bytes = 0;  ///< tensors that travel back
  /// Tensors that the caller has while this call runs, but does not keep for backward: inputs, and
  /// outputs of earlier calls.
  std::int64_t lent_bytes = 0;
  /// Tensors that autograd keeps for backward because of this call itself, without its callees.
  std::int64_t activation_bytes = 0;
  /// Gradients in its own backward, at most at once, beyond the activations let go of by then.
  std::int64_t gradient_bytes = 0;
  /// Gradients of its caller that wait while backward of this call runs, at most at once.
  std::int64_t waiting_bytes = 0;
};

/// A tensor that several calls keep. It counts in the activation_bytes of the first; on a rank that
/// does not run that one, it is another tensor, which travelled there.
struct SharedTensor {
  std::int64_t bytes = 0;
  std::vector<int> calls;  ///< indices in Trace::calls, each once
};

/// A module that reads a weight that another module registered (`embed->weight` in its parent), or
/// that was passed to it: both must be on one stage.
struct WeightUse {
  int module = 0;     ///< index in ModuleTree::nodes; 0 stands for the step body too
  int parameter = 0;  ///< index in ModuleTree::parameters
};

/// Where the numbers of a trace come from.
enum class CostSource : std::uint8_t {
  kCounts,     ///< nothing was run: every module counts its descendants (skip_tracing)
  kEstimated,  ///< operators and their sizes, priced by a roofline: the same on every machine
  kMeasured,   ///< a clock: the median of several runs
};

/// One microbatch through the step body.
struct Trace {
  std::vector<TracedCall> calls;  ///< in the order in which they began; a caller comes first
  double body_after = 0;          ///< what the body itself computed after its last call
  std::vector<WeightUse> foreign_uses;
  std::vector<SharedTensor> shared;
  CostSource source = CostSource::kEstimated;
  /// Backward time of a call over its forward time.
  double backward_ratio = 2.0;
};

}  // namespace smp::partition
