// smp/nn/mixture_of_experts.h: feed-forward networks of which each token passes a few.
//
// N tokens, W width, E experts, k of them for each token.
#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <ostream>
#include <tuple>
#include <vector>

#include "smp/detail/export.h"
#include "smp/nn/gated_mlp.h"
#include "smp/nn/linear.h"

namespace smp {
namespace nn {

/// Options of MixtureOfExperts.
struct MixtureOfExpertsOptions {
  /// @param expert   of each expert
  /// @param experts  E
  /// @param top_k    k
  MixtureOfExpertsOptions(const GatedMlpOptions& expert, std::int64_t experts, std::int64_t top_k)
      : expert_(expert), experts_(experts), top_k_(top_k) {}

  TORCH_ARG(GatedMlpOptions, expert);
  TORCH_ARG(std::int64_t, experts);
  TORCH_ARG(std::int64_t, top_k);
  /// Whether the weights of a token's experts are divided by their sum (Mixtral; Qwen's
  /// `norm_topk_prob`).
  TORCH_ARG(bool, normalized) = true;
  /// The inner width of an expert that every token passes, with weight 1; 0: there is none.
  TORCH_ARG(std::int64_t, shared_inner_width) = 0;
};

/// Each token passes the k experts that a router gives the most probability, and the sum of their
/// results has these probabilities as weights (Shazeer et al. 2017, arXiv 1701.06538). Nothing is
/// dropped: there is no capacity. An expert that no token chooses computes zero rows, so that its
/// gradient is zero and not missing.
///
/// What is minimised is the program's affair: `loss + 0.01 * balance`, say, in the body of a step,
/// where it gets the microbatch's weight like the rest. It is a mean over the tokens of a
/// microbatch of one replica, so it goes by the size of that.
///
/// Experts are routed modules of their own: a plan may put them on other stages, and a call sends
/// there the tokens that chose them. Router, choice and sum are where the module is.
/// Parameters: gate.weight [E, W]; experts.N.{gate,up,down}_proj; shared_expert.
class SMP_API MixtureOfExpertsImpl : public torch::nn::Module {
 public:
  /// @throws UsageError  k is not in [1, E], or a width is not positive.
  explicit MixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);

  /// Computes the mixture for the last axis, which must have W elements.
  /// @return [.., W]; and how unevenly experts were chosen, a scalar: E · sum over e of f(e)·p(e)
  ///         over the N tokens of this call, with f(e) the choices of expert e over N, and p(e) its
  ///         mean probability (Fedus et al. 2021, arXiv 2101.03961; as in Hugging Face's Mixtral,
  ///         for one layer). It is k if all are chosen alike. Its gradient goes through p alone.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

  const MixtureOfExpertsOptions options;
  Linear gate;
  std::vector<GatedMlp> experts;
  GatedMlp shared_expert{nullptr};  ///< empty without
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::MixtureOfExpertsImpl> = false;

namespace nn {

/// Like MixtureOfExpertsImpl, routed.
SMP_MODULE(MixtureOfExperts);

}  // namespace nn
}  // namespace smp
