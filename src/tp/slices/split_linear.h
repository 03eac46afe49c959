// tp/slices/split_linear.h: the slices of fully connected layers in transformer layers; what is
// exchanged before and after is the affair of block_products.h (paper App. F, Figures 11 to 14).
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "smp/tp/distributed_module.h"
#include "tp/slices/channel_share.h"

namespace smp::tp {

/// The initialisation of weights: nothing: as in torch::nn::Linear; else N(0, deviation), with
/// biases 0.
using NormalDeviation = std::optional<double>;

/// The slices of a layer that a rank holds. A parameter that is not cut is whole on every rank.
struct LinearCut {
  enum class Weight : std::uint8_t { kWhole, kOutputs, kInputs };
  Weight weight = Weight::kWhole;
  bool bias = false;          ///< along output channels
  std::int64_t out_unit = 1;  ///< output channels that stay together
  std::int64_t in_unit = 1;   ///< input channels that stay together
};

/// What becomes of the parameters that slices are cut from.
enum class Keep : std::uint8_t {
  kCopies,   ///< nothing: parts of them are copied
  kAdopted,  ///< they become the slices, and stay the same tensors for optimizers
};

/// The parameters of a layer, without its product. Sizes are those of the whole layer; a size that
/// T does not divide is padded.
class SplitLinearImpl : public DistributedModule {
 public:
  SplitLinearImpl(std::int64_t in_features, std::int64_t out_features, const LinearCut& cut,
                  NormalDeviation deviation, bool has_bias = true);

  /// Cuts the parameters of `whole`, which may have no bias.
  SplitLinearImpl(const torch::nn::LinearImpl& whole, const LinearCut& cut, Keep keep);

  at::Tensor weight;  ///< [O, I], one of them of this rank
  at::Tensor bias;    ///< [O], perhaps of this rank; undefined without

 private:
  at::Tensor hold(const char* name, const at::Tensor& whole, std::optional<std::int64_t> dim,
                  std::int64_t unit, Keep keep);
  at::Tensor adopt_padded(const char* name, const at::Tensor& whole, std::int64_t dim,
                          std::int64_t unit);
};

TORCH_MODULE(SplitLinear);

}  // namespace smp::tp
