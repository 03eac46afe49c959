// server/step/step_engine.h: how the bodies of a step are carried out: by messages between ranks
// (StepRun), or alone, to see what modules cost (the trial run of api/planning/tracing.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace smp::server {

/// The interface of the running step to code inside a body. Threads: the rank's.
class StepEngine {
 public:
  virtual ~StepEngine() = default;
  /// Returns the microbatch that the running fiber works for, or -1 outside of bodies, modules and
  /// hooks.
  virtual int current_microbatch() const noexcept = 0;
  /// Returns the weight of that microbatch's loss; nullopt where there is none.
  virtual std::optional<double> current_weight() const = 0;
  /// Runs the backward of one microbatch from `roots`, weighted by the microbatch's weight. May
  /// suspend the fiber.
  /// @param gradients  one a root, of its shape, or none: 1 for each root, which must be one number
  /// @param keep_graph another backward through the same graph may follow, remote modules included
  /// @throws UsageError  outside of a body, or a root needs no gradient; else what a node, a hook
  ///         or another rank threw. The step fails then.
  virtual void backward(const std::vector<at::Tensor>& roots,
                        const std::vector<at::Tensor>& gradients, bool keep_graph) = 0;
};

}  // namespace smp::server
