// server/engine/body_backward.h: model.backward() in the body of a step (paper §4.1, §4.3).
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "server/calls/early_backward.h"
#include "server/step/failure_control.h"
#include "server/step/server_core.h"

namespace smp::server {

/// Runs model.backward() for bodies. Threads: the rank's, on the fiber of the body.
class BodyBackward {
 public:
  /// @param forward_done  called when a body begins its first backward
  BodyBackward(ServerCore& core, FailureControl& failures,
               std::function<void(int microbatch)> forward_done)
      : core_(core), failures_(failures), forward_done_(std::move(forward_done)) {}

  /// Runs StepEngine::backward(), with the same arguments and errors; suspends the fiber of the
  /// body.
  void run(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
           bool keep_graph);

 private:
  /// The roots of a backward pass, and the gradients that it starts from.
  struct WeightedRoots {
    edge_list edges;
    variable_list gradients;
  };
  static WeightedRoots weighted(const std::vector<at::Tensor>& roots,
                                const std::vector<at::Tensor>& gradients, double weight);
  ExecutionScope& require_body() const;
  std::unique_ptr<EarlyBackward> begin_early(const std::vector<at::Tensor>& roots, double weight,
                                             ExecutionScope& scope) const;
  WeightedRoots end_forward(const std::vector<at::Tensor>& roots,
                            const std::vector<at::Tensor>& gradients, double weight,
                            EarlyBackward* early) const;
  void first_backward(const ExecutionIdentity& body, const edge_list& roots) const;
  void run_pass(const ExecutionIdentity& body, const edge_list& roots, variable_list gradients,
                bool keep_graph) const;

  ServerCore& core_;
  FailureControl& failures_;
  const std::function<void(int)> forward_done_;
};

}  // namespace smp::server
