// tp/split_linear.h: the local part of fully connected layers in transformer layers; what is
// exchanged before and after is the affair of the layer (paper App. F.1, Figures 11 and 12).
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "smp/tp/distributed_module.h"

namespace smp::tp {

/// How weights start: as those of torch::nn::Linear; or N(0, deviation), and biases at 0.
using NormalDeviation = std::optional<double>;

/// Split along output channels: [.., I] -> this rank's [.., O/T].
class OutputSplitLinearImpl : public DistributedModule {
 public:
  OutputSplitLinearImpl(std::int64_t in_features, std::int64_t out_features,
                        NormalDeviation deviation);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  ///< [O/T, I]
  at::Tensor bias;    ///< [O/T]
};

/// Split along input channels: this rank's [.., I/T] -> its part of a sum [.., O], without bias.
class InputSplitLinearImpl : public DistributedModule {
 public:
  InputSplitLinearImpl(std::int64_t in_features, std::int64_t out_features,
                       NormalDeviation deviation);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;  ///< [O, I/T]
  at::Tensor bias;    ///< [O], whole; to be added to one's own samples after the sum
};

TORCH_MODULE(OutputSplitLinear);
TORCH_MODULE(InputSplitLinear);

}  // namespace smp::tp
