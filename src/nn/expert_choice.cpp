// nn/expert_choice.cpp: see the header.
#include "nn/expert_choice.h"

#include <ATen/ATen.h>

#include "base/check.h"
#include "nn/accumulate_type.h"

namespace smp::nn {
namespace {

std::vector<std::int64_t> counts_of(const at::Tensor& chosen, std::int64_t experts) {
  if (chosen.is_meta()) {
    std::vector<std::int64_t> even(static_cast<std::size_t>(experts), chosen.numel() / experts);
    even[0] += chosen.numel() % experts;
    return even;
  }
  const auto counts = at::bincount(chosen, {}, experts).cpu();
  const auto* const first = counts.const_data_ptr<std::int64_t>();
  return {first, first + experts};
}

/// @param chosen  [N, k]
at::Tensor balance_of(const at::Tensor& probabilities, const at::Tensor& chosen,
                      std::int64_t experts) {
  const auto ones = at::ones_like(chosen, probabilities.options().requires_grad(false)).flatten();
  const auto choices = at::zeros({experts}, ones.options()).index_add_(0, chosen.flatten(), ones);
  return (choices * probabilities.mean(0)).sum() * (static_cast<double>(experts) / chosen.size(0));
}

}  // namespace

void check_mixture(const MixtureOfExpertsOptions& options) {
  SMP_REQUIRE(options.top_k() > 0 && options.top_k() <= options.experts(),
              "MixtureOfExperts: top_k is ", options.top_k(), " of ", options.experts(),
              " experts; choose 1 to as many as there are");
  SMP_REQUIRE(options.shared_inner_width() >= 0, "MixtureOfExperts: shared_inner_width is ",
              options.shared_inner_width(), ", must be 0, which is none, or more");
}

ExpertChoice choose_experts(const at::Tensor& scores, const MixtureOfExpertsOptions& options) {
  const auto probabilities = at::softmax(in_accumulate_type(scores), -1);
  auto [weights, chosen] = at::topk(probabilities, options.top_k(), -1);
  if (options.normalized()) weights = weights / weights.sum(-1, /*keepdim=*/true);
  const auto flat = chosen.flatten();
  const auto order = at::argsort(flat, /*stable=*/true, /*dim=*/-1, /*descending=*/false);
  return {order.floor_divide(options.top_k()),
          weights.flatten().index_select(0, order).unsqueeze(-1).to(scores.scalar_type()),
          counts_of(flat, options.experts()), balance_of(probabilities, chosen, options.experts())};
}

at::Tensor sums_of_choices(const at::Tensor& results, const ExpertChoice& choice,
                           std::int64_t tokens) {
  return at::zeros({tokens, results.size(-1)}, results.options())
      .index_add(0, choice.token, results * choice.weight);
}

}  // namespace smp::nn
