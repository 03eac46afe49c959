// nn/expert_choice.h: which tokens go to which experts, for experts that are anywhere.
//
// N tokens, E experts, k choices of each token.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "smp/nn/mixture_of_experts.h"

namespace smp::nn {

/// The k·N choices of N tokens, in order of experts, and of tokens for each.
struct ExpertChoice {
  at::Tensor token;                  ///< [k·N] int64
  at::Tensor weight;                 ///< [k·N, 1], of the type of the tokens, with a history
  std::vector<std::int64_t> counts;  ///< of each expert: choices
  at::Tensor balance;                ///< see MixtureOfExperts
};

/// Chooses by the scores [N, E] of a router. Probabilities are made in float32 of 16 bits. Without
/// values (a plan is made) all experts are chosen alike.
ExpertChoice choose_experts(const at::Tensor& scores, const MixtureOfExpertsOptions& options);

/// Returns the sums of what the experts gave: [N, W].
/// @param results  [k·N, W] in the order of `choice`
/// @param tokens   N
at::Tensor sums_of_choices(const at::Tensor& results, const ExpertChoice& choice,
                           std::int64_t tokens);

/// @throws UsageError  k is not in [1, E], or the shared width is negative.
void check_mixture(const MixtureOfExpertsOptions& options);

}  // namespace smp::nn
