// tp/layers/distributed_mixture_of_experts.cpp: see the header.
#include "smp/tp/distributed_mixture_of_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "nn/expert_choice.h"
#include "nn/gate_activation.h"
#include "smp/tp/batch_primitives.h"
#include "smp/tp/distributed_gated_mlp.h"
#include "tp/experts/expert_exchange.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/joined_product.h"
#include "tp/slices/split_linear.h"

namespace smp::nn {
namespace {

constexpr const char* kMixture = "DistributedMixtureOfExperts";
constexpr const char* kBiases = "experts with biases are not spread";

/// True if of a projection the weights of some experts are frozen, and those of others are not.
bool some_are_frozen(const std::vector<GatedMlp>& experts) {
  const auto frozen = [](const GatedMlp& expert) {
    const auto of = [](const Linear& projection) { return !projection->weight.requires_grad(); };
    return std::array{of(expert->gate_proj), of(expert->up_proj), of(expert->down_proj)};
  };
  return std::any_of(experts.begin(), experts.end(),
                     [&](const GatedMlp& expert) { return frozen(expert) != frozen(experts[0]); });
}

/// The experts of a rank, stacked.
class OwnExpertsImpl : public DistributedModule {
 public:
  explicit OwnExpertsImpl(const std::vector<GatedMlp>& all)
      : activation_(all[0]->options.activation()) {
    gate_ = stacked("gate_proj", all, [](const GatedMlp& expert) { return expert->gate_proj; });
    up_ = stacked("up_proj", all, [](const GatedMlp& expert) { return expert->up_proj; });
    down_ = stacked("down_proj", all, [](const GatedMlp& expert) { return expert->down_proj; });
  }

  /// The experts that each rank holds; those of the last ones may pad.
  std::int64_t count() const { return gate_.size(0); }

  /// @param rows    in order of experts
  /// @param counts  of each own expert; one that has none gets a gradient of zeros
  at::Tensor forward(const at::Tensor& rows, const std::vector<std::int64_t>& counts) const {
    const auto parts = rows.split_with_sizes(counts);
    const auto gates = gate_.unbind(0), ups = up_.unbind(0), downs = down_.unbind(0);
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto inner = tp::joined_product(parts[i], {gates[i], ups[i]}, {}).chunk(2, -1);
      results.push_back(at::linear(activated(inner[0], activation_) * inner[1], downs[i]));
    }
    return at::cat(results);
  }

 private:
  template <class Projection>
  at::Tensor stacked(const char* name, const std::vector<GatedMlp>& all,
                     const Projection& projection) {
    std::vector<at::Tensor> weights;
    for (const auto& expert : all) weights.push_back(projection(expert)->weight.detach());
    auto& own = register_padded_slice(name, at::stack(weights), 0);
    own.requires_grad_(projection(all[0])->weight.requires_grad());
    return own;
  }

  const GateActivation activation_;
  at::Tensor gate_, up_, down_;  // [c, I, W], [c, I, W], [c, W, I]
};
TORCH_MODULE(OwnExperts);

}  // namespace

struct DistributedMixtureOfExpertsImpl::Parts {
  tp::SplitLinear gate{nullptr};
  OwnExperts experts{nullptr};
  std::shared_ptr<DistributedGatedMlpImpl> shared = {};
};

DistributedMixtureOfExpertsImpl::DistributedMixtureOfExpertsImpl(const MixtureOfExpertsImpl& whole,
                                                                 tp::Keep keep)
    : options(whole.options), parts_(std::make_shared<Parts>()) {
  SMP_REQUIRE(!options.expert().bias(), kMixture, ": ", kBiases, "; leave bias out");
  auto& own = *parts_;
  own.gate = register_module("gate", tp::SplitLinear(*whole.gate, tp::LinearCut(), keep));
  own.experts = register_module("experts", OwnExperts(whole.experts));
  if (!whole.shared_expert) return;
  own.shared = register_module("shared_expert",
                               std::shared_ptr<DistributedGatedMlpImpl>(
                                   new DistributedGatedMlpImpl(*whole.shared_expert, {}, keep)));
}

DistributedMixtureOfExpertsImpl::DistributedMixtureOfExpertsImpl(
    const MixtureOfExpertsOptions& with)
    : DistributedMixtureOfExpertsImpl(MixtureOfExpertsImpl(with), tp::Keep::kCopies) {}

DistributedMixtureOfExpertsImpl::DistributedMixtureOfExpertsImpl(MixtureOfExpertsImpl& original)
    : DistributedMixtureOfExpertsImpl(original, tp::Keep::kAdopted) {}

DistributedMixtureOfExpertsImpl::~DistributedMixtureOfExpertsImpl() = default;

std::string DistributedMixtureOfExpertsImpl::obstacle(const MixtureOfExpertsImpl& original,
                                                      int ranks) {
  if (original.options.expert().bias()) return kBiases;
  if (some_are_frozen(original.experts)) {
    return "some of its experts are frozen and some are not, whose weights would be one parameter";
  }
  if (!original.shared_expert) return {};
  return DistributedGatedMlpImpl::obstacle(*original.shared_expert, ranks);
}

void DistributedMixtureOfExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedMixtureOfExperts(" << options.expert().width()
         << ", experts=" << options.experts() << ", top_k=" << options.top_k() << ")";
}

std::tuple<at::Tensor, at::Tensor> DistributedMixtureOfExpertsImpl::forward(
    const at::Tensor& input) {
  SMP_REQUIRE(input.dim() > 0 && input.size(-1) == options.expert().width(), kMixture,
              ": input is ", input.sizes(), ", expected [.., ", options.expert().width(),
              "]; check the width");
  auto& own = *parts_;
  const auto rows = input.reshape({-1, input.size(-1)});
  const auto choice = choose_experts(at::linear(rows, own.gate->weight), options);
  const bool same = tp::TensorParallel::current().same_batch();
  auto sums = (same ? sums_of_same_samples(rows, choice) : sums_of_own_samples(rows, choice))
                  .view(input.sizes());
  if (own.shared) sums = sums + own.shared->forward(input);
  return {sums, choice.balance};
}

at::Tensor DistributedMixtureOfExpertsImpl::sums_of_own_samples(const at::Tensor& rows,
                                                                const ExpertChoice& choice) const {
  const auto& experts = *parts_->experts;
  auto counts = choice.counts;
  counts.resize(static_cast<std::size_t>(experts.count() * tp::TensorParallel::current().size()));
  const tp::ExpertExchange exchange(counts, experts.count());
  const auto chosen = exchange.to_experts(rows.index_select(0, choice.token));
  return sums_of_choices(exchange.back(experts.forward(chosen, exchange.counts())), choice,
                         rows.size(0));
}

/// Every rank has all choices, and computes those of its experts.
at::Tensor DistributedMixtureOfExpertsImpl::sums_of_same_samples(const at::Tensor& rows,
                                                                 const ExpertChoice& choice) const {
  const auto& experts = *parts_->experts;
  auto counts = choice.counts;
  const auto own = static_cast<std::size_t>(experts.count());
  const auto first = own * static_cast<std::size_t>(tp::TensorParallel::current().rank());
  counts.resize(own * static_cast<std::size_t>(tp::TensorParallel::current().size()));
  const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(first);
  const std::vector<std::int64_t> own_counts(begin, begin + static_cast<std::ptrdiff_t>(own));
  const auto before = std::accumulate(counts.begin(), begin, std::int64_t{0});
  const auto number = std::accumulate(own_counts.begin(), own_counts.end(), std::int64_t{0});
  auto part = choice;
  part.token = choice.token.narrow(0, before, number);
  part.weight = whole_batch_for_tp(choice.weight).narrow(0, before, number);
  const auto chosen = whole_batch_for_tp(rows).index_select(0, part.token);
  return batch_of_sums_for_tp(
      sums_of_choices(experts.forward(chosen, own_counts), part, rows.size(0)));
}

}  // namespace smp::nn
