// smp/nn/conv.h: convolutions, forward and transposed, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/conv.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(Conv1d)
SMP_NN_LAYER(Conv2d)
SMP_NN_LAYER(Conv3d)
SMP_NN_LAYER(ConvTranspose1d)
SMP_NN_LAYER(ConvTranspose2d)
SMP_NN_LAYER(ConvTranspose3d)

namespace nn {

using torch::nn::Conv1dOptions;
using torch::nn::Conv2dOptions;
using torch::nn::Conv3dOptions;
using torch::nn::ConvOptions;
using torch::nn::ConvTranspose1dOptions;
using torch::nn::ConvTranspose2dOptions;
using torch::nn::ConvTranspose3dOptions;
using torch::nn::ConvTransposeOptions;

}  // namespace nn
}  // namespace smp
