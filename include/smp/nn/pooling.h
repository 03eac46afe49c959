// smp/nn/pooling.h: pooling and unpooling, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/pooling.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(AvgPool1d)
SMP_NN_LAYER(AvgPool2d)
SMP_NN_LAYER(AvgPool3d)
SMP_NN_LAYER(MaxPool1d)
SMP_NN_LAYER(MaxPool2d)
SMP_NN_LAYER(MaxPool3d)
SMP_NN_LAYER(AdaptiveMaxPool1d)
SMP_NN_LAYER(AdaptiveMaxPool2d)
SMP_NN_LAYER(AdaptiveMaxPool3d)
SMP_NN_LAYER(AdaptiveAvgPool1d)
SMP_NN_LAYER(AdaptiveAvgPool2d)
SMP_NN_LAYER(AdaptiveAvgPool3d)
SMP_NN_LAYER(MaxUnpool1d)
SMP_NN_LAYER(MaxUnpool2d)
SMP_NN_LAYER(MaxUnpool3d)
SMP_NN_RANDOM_LAYER(FractionalMaxPool2d)
SMP_NN_RANDOM_LAYER(FractionalMaxPool3d)
SMP_NN_LAYER(LPPool1d)
SMP_NN_LAYER(LPPool2d)
SMP_NN_LAYER(LPPool3d)

namespace nn {

using torch::nn::AdaptiveAvgPool1dOptions;
using torch::nn::AdaptiveAvgPool2dOptions;
using torch::nn::AdaptiveAvgPool3dOptions;
using torch::nn::AdaptiveAvgPoolOptions;
using torch::nn::AdaptiveMaxPool1dOptions;
using torch::nn::AdaptiveMaxPool2dOptions;
using torch::nn::AdaptiveMaxPool3dOptions;
using torch::nn::AdaptiveMaxPoolOptions;
using torch::nn::AvgPool1dOptions;
using torch::nn::AvgPool2dOptions;
using torch::nn::AvgPool3dOptions;
using torch::nn::AvgPoolOptions;
using torch::nn::FractionalMaxPool2dOptions;
using torch::nn::FractionalMaxPool3dOptions;
using torch::nn::FractionalMaxPoolOptions;
using torch::nn::LPPool1dOptions;
using torch::nn::LPPool2dOptions;
using torch::nn::LPPool3dOptions;
using torch::nn::LPPoolOptions;
using torch::nn::MaxPool1dOptions;
using torch::nn::MaxPool2dOptions;
using torch::nn::MaxPool3dOptions;
using torch::nn::MaxPoolOptions;
using torch::nn::MaxUnpool1dOptions;
using torch::nn::MaxUnpool2dOptions;
using torch::nn::MaxUnpool3dOptions;
using torch::nn::MaxUnpoolOptions;

}  // namespace nn
}  // namespace smp
