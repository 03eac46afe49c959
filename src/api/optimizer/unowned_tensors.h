// api/optimizer/unowned_tensors.h: learnable tensors of no model, which an optimizer has on all
// ranks and one of them steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <vector>

#include "d2d/collectives/communicator.h"

namespace smp {

class PlacedParameters;
class Rank;

/// Those of one optimizer, in order of its groups; alike on all ranks. Threads: the rank's.
class UnownedTensors {
 public:
  bool empty() const noexcept { return tensors_.empty(); }

  /// Looks for them in the groups; who steps one of them goes on to.
  void find(Rank& rank, torch::optim::Optimizer& optimizer, const PlacedParameters& models);

  /// Finds out which stage has the gradient of each. Collective over both; suspends.
  /// @throws UsageError        on all stages: several have one, or ranks have other tensors
  /// @throws UnsupportedError  on all stages: there are replicas, which add up gradients of models
  ///                           only
  void find_holders(const d2d::Communicator& ranks, const d2d::Communicator& replicas_of_stage);

  /// Returns the tensors that other stages than `stage` step. State of them that is here was loaded
  /// or made before anybody knew the holder, and would become outdated.
  std::vector<at::Tensor> stepped_elsewhere(int stage) const;

  /// Sends the tensors that their holders have stepped to all other stages. Collective; suspends.
  void give_out(const d2d::Communicator& ranks) const;

 private:
  struct Unowned {
    at::Tensor tensor;
    int holder = -1;  // the stage that steps it; -1: none yet
  };
  std::vector<Unowned> tensors_;
};

}  // namespace smp
