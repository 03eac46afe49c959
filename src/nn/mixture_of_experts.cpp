// nn/mixture_of_experts.cpp: see smp/nn/mixture_of_experts.h.
#include "smp/nn/mixture_of_experts.h"

#include <ATen/ATen.h>

#include <string>

#include "base/check.h"
#include "nn/expert_choice.h"
#include "smp/nn/container.h"

namespace smp::nn {

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const MixtureOfExpertsOptions& with)
    : options(with),
      gate(register_module(
          "gate", Linear(LinearOptions(with.expert().width(), with.experts()).bias(false)))) {
  check_mixture(options);
  auto list = register_module("experts", ModuleList());
  for (std::int64_t i = 0; i < options.experts(); ++i) {
    experts.emplace_back(options.expert());
    list->push_back(experts.back());
  }
  if (options.shared_inner_width() == 0) return;
  auto shared = options.expert();
  shared_expert =
      register_module("shared_expert", GatedMlp(shared.inner_width(options.shared_inner_width())));
}

void MixtureOfExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::MixtureOfExperts(" << options.expert().width()
         << ", experts=" << options.experts() << ", top_k=" << options.top_k() << ")";
}

std::tuple<at::Tensor, at::Tensor> MixtureOfExpertsImpl::forward(const at::Tensor& input) {
  SMP_REQUIRE(input.dim() > 0 && input.size(-1) == options.expert().width(),
              "MixtureOfExperts: input is ", input.sizes(), ", expected [.., ",
              options.expert().width(), "]; check the width");
  const auto rows = input.reshape({-1, input.size(-1)});
  const auto choice = choose_experts(gate(rows), options);
  const auto chosen = rows.index_select(0, choice.token).split_with_sizes(choice.counts);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < experts.size(); ++i) results.push_back(experts[i](chosen[i]));
  auto sums = sums_of_choices(at::cat(results), choice, rows.size(0)).view(input.sizes());
  if (shared_expert) sums = sums + shared_expert(input);
  return {sums, choice.balance};
}

}  // namespace smp::nn
