// api/optimizer/stochastic_steps.h: parameters of bfloat16 that keep no float32 copies, stepped in
// float32 and rounded by chance (HLAT, arXiv 2404.10630).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "precision/whole_index.h"

namespace smp {

struct SessionParts;

/// Steps an optimizer of which some parameters are bfloat16. Each is stepped by itself: a tensor of
/// float32 takes its place in the optimizer's groups, and has its state, which is of float32 as
/// well, so the optimizer computes as it does for float32. What it gives is rounded by random bits
/// that depend on seed, step, the parameter's name and the element's index in the undistributed
/// model; steps are counted on all ranks alike. Threads: the rank's, between steps.
class StochasticSteps {
 public:
  explicit StochasticSteps(const SessionParts& session) : session_(session) {}

  /// Calls `step`, which steps `optimizer`, for the parameters of other types and then for each of
  /// bfloat16 that has a gradient.
  void run(torch::optim::Optimizer& optimizer, c10::function_ref<void()> step);

 private:
  /// What a parameter is in the undistributed model.
  struct Identity {
    std::string name;  ///< with the number of its model
    precision::WholeIndex part;
  };

  void step_one(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                const at::Tensor& parameter, const Identity& identity,
                c10::function_ref<void()> step) const;
  void find_identities();

  const SessionParts& session_;
  std::uint64_t number_ = 0;                              // of the optimizer's step
  std::unordered_map<const void*, Identity> identities_;  // of the parameters of all models
};

}  // namespace smp
