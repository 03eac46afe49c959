// tp/layers/distributed_layer_norm.cpp: see the header.
#include "smp/tp/distributed_layer_norm.h"

#include <ATen/ATen.h>

#include <ostream>

#include "base/check.h"
#include "smp/tp/batch_primitives.h"
#include "tp/group/tensor_parallel.h"
#include "tp/slices/sliced_norm.h"

namespace smp::nn {
DistributedLayerNormImpl::DistributedLayerNormImpl(const torch::nn::LayerNormOptions& with)
    : options(with) {
  SMP_REQUIRE_AS(UnsupportedError, options.normalized_shape().size() == 1,
                 "DistributedLayerNorm over the last ", options.normalized_shape().size(),
                 " dimensions; only the last can be sliced: flatten them, or use "
                 "smp::nn::LayerNorm");
  const auto ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(size() > 0 && size() % ranks == 0, "DistributedLayerNorm of size ", size(), " for ",
              ranks, " tensor-parallel ranks: it cannot be divided by ", ranks,
              "; choose a size that can, or another tensor_parallel_degree");
  const bool affine = options.elementwise_affine();
  if (!affine) {
    weight = register_parameter("weight", at::Tensor(), false);
    bias = register_parameter("bias", at::Tensor(), false);
    return;
  }
  weight = register_slice("weight", at::ones({size()}), 0);
  bias = register_slice("bias", at::zeros({size()}), 0);
}

DistributedLayerNormImpl::DistributedLayerNormImpl(torch::nn::LayerNormImpl& original)
    : options(original.options) {
  if (!options.elementwise_affine()) return;
  weight = adopt_slice("weight", original.weight, 0);
  bias = adopt_slice("bias", original.bias, 0);
}

std::string DistributedLayerNormImpl::obstacle(const torch::nn::LayerNormImpl& original,
                                               int ranks) {
  const auto& shape = original.options.normalized_shape();
  if (shape.size() != 1) return base::concat("it normalises ", shape.size(), " dimensions");
  if (shape[0] > 0 && shape[0] % ranks == 0) return {};
  return base::concat("its size ", shape[0], " cannot be divided by ", ranks);
}

at::Tensor DistributedLayerNormImpl::forward(const at::Tensor& input) {
  SMP_REQUIRE(input.dim() >= 2 && input.size(-1) == size(), "DistributedLayerNorm: input is ",
              input.sizes(), ", expected [batch, .., ", size(),
              "]; check normalized_shape, or add a dimension for the batch");
  const auto slices = slices_of_batch_for_tp(input, -1);
  return batch_of_slices_for_tp(DistributedLayerNormImpl::normalize_slices(slices), -1);
}

at::Tensor DistributedLayerNormImpl::normalize_slices(const at::Tensor& slices) {
  const auto ranks = tp::TensorParallel::current().size();
  SMP_REQUIRE(slices.dim() >= 1 && slices.size(-1) * ranks == size(),
              "DistributedLayerNorm: slices are ", slices.sizes(), ", expected [.., ",
              size() / ranks, "], a rank's part of ", size());
  return tp::normalized_slices(slices, weight, bias, options.eps(), size());
}

void DistributedLayerNormImpl::pretty_print(std::ostream& stream) const {
  stream << "smp::nn::DistributedLayerNorm([" << size() << "], eps=" << options.eps()
         << ", elementwise_affine=" << std::boolalpha << options.elementwise_affine() << ")";
}

}  // namespace smp::nn
