// api/optimizer/wide_steps.h: parameters of 16 bits, stepped in float32 (HLAT, arXiv 2404.10630;
// Micikevicius et al., arXiv 1710.03740).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <unordered_map>

#include "precision/whole_index.h"

namespace smp {

struct Config;
struct SessionParts;

/// Steps an optimizer of which some parameters have 16 bits. Each is stepped by itself: a tensor of
/// float32 takes its place in the optimizer's groups, and has its state, which is of float32 as
/// well, so the optimizer computes as it does for float32. What it gives is rounded:
///
/// - `master_weights`: to nearest; the float32 values are kept for the next step. An element that
///   was written since, so that its parameter is no more what its master rounds to, starts from
///   the parameter.
/// - `stochastic_rounding`, parameters of bfloat16: by random bits that depend on seed, step, the
///   parameter's name and the element's index in the undistributed model; steps are counted on all
///   ranks alike.
///
/// Adam, AdamW and SGD step in one pass over memory (fused_update.h) what has 16 bits, and with
/// Config::precision float32 as well. Threads: the rank's, between steps.
class WideSteps {
 public:
  explicit WideSteps(const SessionParts& session) : session_(session) {}

  /// True if some setting asks for it.
  static bool wanted(const Config& config);
  /// True if steps of `optimizer` are to be made by run(): a setting asks for it, or there is a
  /// `precision` and the optimizer's steps are known in one pass.
  static bool wanted(const Config& config, const torch::optim::Optimizer& optimizer);

  /// Calls `step`, which steps `optimizer`, for the parameters of other types and then for each of
  /// 16 bits that has a gradient.
  /// @throws UnsupportedError  the optimizer is none of LibTorch's
  void run(torch::optim::Optimizer& optimizer, c10::function_ref<void()> step);

 private:
  /// What a parameter is in the undistributed model.
  struct Identity {
    std::string name;  ///< with the number of its model
    precision::WholeIndex part;
  };

  bool is_wide(const at::Tensor& parameter) const;
  bool step_fused(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                  const at::Tensor& parameter) const;
  std::uint64_t key_of(const Identity& identity) const;
  void step_one(torch::optim::Optimizer& optimizer, torch::optim::OptimizerParamGroup& group,
                const at::Tensor& parameter, c10::function_ref<void()> step) const;
  at::Tensor values_of(const at::Tensor& parameter) const;
  void round(const at::Tensor& wide, const at::Tensor& parameter) const;
  void find_identities(const torch::optim::Optimizer& optimizer);

  const SessionParts& session_;
  std::uint64_t number_ = 0;                              // of the optimizer's step
  std::unordered_map<const void*, Identity> identities_;  // for random bits
};

}  // namespace smp
