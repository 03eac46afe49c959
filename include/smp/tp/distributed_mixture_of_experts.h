// smp/tp/distributed_mixture_of_experts.h: experts dealt to the ranks of a TP_GROUP.
//
// N tokens of one rank's batch, W width, I inner width, E experts, k of them for each token, T
// tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "smp/module.h"
#include "smp/nn/mixture_of_experts.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace tp {
enum class Keep : std::uint8_t;
}
namespace nn {

struct ExpertChoice;

/// An nn::MixtureOfExperts of which rank j holds experts j·c to (j+1)·c - 1, c = ceil(E/T). Every
/// rank has the router and chooses for its own tokens; choices travel to the rank of their expert,
/// and results back. Nothing is dropped, and any E and any choice will do:
///
///     x [N, W] ─ router ─► k·N choices ─ all-to-all ─► those of own experts ─ experts ─►
///       ─ all-to-all ─► k·N results ─ weighted sums ─► [N, W]
///
/// A rank sends each other one M rows, M = the most choices that any rank has for another's experts
/// (shorter blocks are filled up with zeros): 2·(T-1)·M·W elements in forward, in backward as many,
/// and E whole numbers before. If experts are chosen alike M is k·N/T. With a prescaled batch, of
/// which all ranks make the same choices, each computes those of its experts, and one all-reduce of
/// [N, W] adds up: 2·(T-1)/T·N·W elements, in backward as many and (T-1)/T·2·k·N for the router.
///
/// Parameters: gate.weight [E, W], whole on every rank; experts.gate_proj and experts.up_proj [E,
/// I, W], experts.down_proj [E, W, I], sliced along E; those of a DistributedGatedMlp,
/// shared_expert.
class SMP_API DistributedMixtureOfExpertsImpl : public DistributedModule {
 public:
  /// Makes this rank's experts, which start from the values of nn::MixtureOfExperts after the same
  /// torch::manual_seed.
  /// @throws UsageError  as nn::MixtureOfExperts; experts have biases, or no session runs.
  explicit DistributedMixtureOfExpertsImpl(const MixtureOfExpertsOptions& options);
  /// Stands in for `original`, with its weights. Those of its experts become parameters of this
  /// module.
  explicit DistributedMixtureOfExpertsImpl(MixtureOfExpertsImpl& original);
  ~DistributedMixtureOfExpertsImpl() override;
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const MixtureOfExpertsImpl& original, int ranks);

  /// Computes the mixture for this rank's batch.
  /// @param input  [.., W]
  /// @return as nn::MixtureOfExperts: [.., W], and how unevenly this rank's tokens chose
  /// @throws UsageError  `input` has another width, or a shape that other ranks do not have.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  const MixtureOfExpertsOptions options;

 private:
  struct Parts;
  DistributedMixtureOfExpertsImpl(const MixtureOfExpertsImpl& whole, tp::Keep keep);
  at::Tensor sums_of_own_samples(const at::Tensor& rows, const ExpertChoice& choice) const;
  at::Tensor sums_of_same_samples(const at::Tensor& rows, const ExpertChoice& choice) const;
  std::shared_ptr<Parts> parts_;
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedMixtureOfExpertsImpl> = false;

namespace nn {

/// Like DistributedMixtureOfExpertsImpl, routed.
SMP_MODULE(DistributedMixtureOfExperts);

}  // namespace nn
}  // namespace smp
