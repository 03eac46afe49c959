// smp/tp/distributed_gated_mlp.h: feed-forward networks with a gate over the ranks of a TP_GROUP.
//
// B rows of one rank's batch, S sequence, W width, I inner width, T tensor-parallel ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "smp/module.h"
#include "smp/nn/gated_mlp.h"
#include "smp/tp/distributed_module.h"

namespace smp {
namespace tp {
enum class Keep : std::uint8_t;
}
namespace nn {

class DistributedDecoderLayerImpl;
class DistributedMixtureOfExpertsImpl;

/// An nn::GatedMlp with its inner channels dealt to the ranks: rank j computes channels j·c to
/// (j+1)·c - 1, c = ceil(I/T), for the samples of all. Gate and up are one product. I may be any
/// number: channels that pad are zero, get no gradient, and are in no file. Parameters have the
/// names of GatedMlp.
///
///     "speed"   x [B, S, W] ─ all-gather ─► [T·B, S, W] ─ gate, up ─► [T·B, S, 2·c]
///               ─ act(gate)·up, down ─► ─ reduce-scatter ─► [B, S, W]
///     "memory"  x [T·B, S, W/T] ─ gate, up ─► partial sums ─ reduce-scatter ─► [T·B, S, 2·c]
///               ─ act(gate)·up, down ─► ─ reduce-scatter ─► [T·B, S, W/T]
///
/// Elements that each rank sends in forward; in backward as many:
///
///     "speed"   2·(T-1)·B·S·W
///     "memory"  (T-1)·B·S·(2·T·c + W), and alone 2·(T-1)/T·B·S·W at both ends
class SMP_API DistributedGatedMlpImpl : public DistributedModule {
 public:
  /// Makes this rank's slices of a new network, which starts from the values of nn::GatedMlp after
  /// the same torch::manual_seed.
  /// @param options   of the whole network
  /// @param optimize  "speed", "memory" or "sequence"; empty: as the setting
  /// @throws UsageError  a width is not positive, "memory" cannot divide the width by T, or no
  ///                     session runs.
  explicit DistributedGatedMlpImpl(const GatedMlpOptions& options,
                                   const std::string& optimize = {});
  /// Stands in for `original`, whose parameters become slices.
  explicit DistributedGatedMlpImpl(GatedMlpImpl& original);
  ~DistributedGatedMlpImpl() override;
  /// Returns why `original` cannot be spread over `ranks` ranks, or an empty text if it can.
  static std::string obstacle(const GatedMlpImpl& original, int ranks);

  /// Computes the network for this rank's batch: [B, .., W] -> [B, .., W].
  /// @throws UsageError  `input` has another width, no batch, or a shape that other ranks do not
  ///                     have.
  at::Tensor forward(const at::Tensor& input);
  /// Does the same between layers of layout "memory": [T·B, .., W/T] -> [T·B, .., W/T].
  /// @throws UsageError  the layout is "speed", or T is 1.
  at::Tensor forward_slices(const at::Tensor& slices);
  void pretty_print(std::ostream& stream) const override;

  const GatedMlpOptions options;

 private:
  friend class DistributedDecoderLayerImpl;
  friend class DistributedMixtureOfExpertsImpl;
  struct Parts;
  DistributedGatedMlpImpl(const GatedMlpImpl& whole, const std::string& optimize, tp::Keep keep);
  at::Tensor of_parts(const at::Tensor& part, std::int64_t length);
  std::shared_ptr<Parts> parts_;
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::DistributedGatedMlpImpl> = false;

namespace nn {

/// Like DistributedGatedMlpImpl, routed.
SMP_MODULE(DistributedGatedMlp, forward_slices);

}  // namespace nn
}  // namespace smp
