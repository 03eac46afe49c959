// smp/nn/normalization.h: batch, instance, layer and group norms, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(BatchNorm1d)
SMP_NN_LAYER(BatchNorm2d)
SMP_NN_LAYER(BatchNorm3d)
SMP_NN_LAYER(InstanceNorm1d)
SMP_NN_LAYER(InstanceNorm2d)
SMP_NN_LAYER(InstanceNorm3d)
SMP_NN_LAYER(LayerNorm)
SMP_NN_LAYER(LocalResponseNorm)
SMP_NN_LAYER(CrossMapLRN2d)
SMP_NN_LAYER(GroupNorm)

namespace nn {

using torch::nn::BatchNorm1dOptions;
using torch::nn::BatchNorm2dOptions;
using torch::nn::BatchNorm3dOptions;
using torch::nn::BatchNormOptions;
using torch::nn::CrossMapLRN2dOptions;
using torch::nn::GroupNormOptions;
using torch::nn::InstanceNorm1dOptions;
using torch::nn::InstanceNorm2dOptions;
using torch::nn::InstanceNorm3dOptions;
using torch::nn::InstanceNormOptions;
using torch::nn::LayerNormOptions;
using torch::nn::LocalResponseNormOptions;

}  // namespace nn
}  // namespace smp
