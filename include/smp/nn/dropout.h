// smp/nn/dropout.h: layers that drop values at random, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/dropout.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_RANDOM_LAYER(Dropout)
SMP_NN_RANDOM_LAYER(Dropout2d)
SMP_NN_RANDOM_LAYER(Dropout3d)
SMP_NN_RANDOM_LAYER(AlphaDropout)
SMP_NN_RANDOM_LAYER(FeatureAlphaDropout)

namespace nn {

using torch::nn::AlphaDropoutOptions;
using torch::nn::Dropout2dOptions;
using torch::nn::Dropout3dOptions;
using torch::nn::DropoutOptions;
using torch::nn::FeatureAlphaDropoutOptions;

}  // namespace nn
}  // namespace smp
