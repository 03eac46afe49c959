// smp/nn/linear.h: fully connected layers and changes of shape, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>

#include "smp/detail/export.h"
#include "smp/nn/layer.h"

namespace smp {

namespace nn {

/// torch::nn::LinearImpl, but that a step under autocast casts its weight once, for all
/// microbatches: LibTorch's own multiplies by `weight.t()`, and its cache of cast weights leaves
/// views out (2.13). Threads: any, one at a time.
class SMP_API LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  /// Returns input [*, in_features] times weight^T plus bias: [*, out_features]. Under autocast of
  /// the input's device one rounding, as at::linear; else the bits of torch::nn::Linear.
  at::Tensor forward(const at::Tensor& input);
  /// Returns a layer of this class with tensors of its own, on `device` if one is given.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  explicit LinearImpl(const torch::nn::LinearImpl& plain) : torch::nn::LinearImpl(plain) {}
};

}  // namespace nn

template <>
inline constexpr bool draws_random_v<nn::LinearImpl> = false;

namespace nn {

/// Like torch::nn::Linear, routed.
SMP_MODULE(Linear);

using torch::nn::BilinearOptions;
using torch::nn::FlattenOptions;
using torch::nn::LinearOptions;
using torch::nn::UnflattenOptions;

}  // namespace nn

SMP_NN_LAYER(Identity)
SMP_NN_LAYER(Flatten)
SMP_NN_LAYER(Unflatten)
SMP_NN_LAYER(Bilinear)

}  // namespace smp
