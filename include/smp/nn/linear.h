// smp/nn/linear.h: fully connected layers and changes of shape, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/linear.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(Identity)
SMP_NN_LAYER(Linear)
SMP_NN_LAYER(Flatten)
SMP_NN_LAYER(Unflatten)
SMP_NN_LAYER(Bilinear)

namespace nn {

using torch::nn::BilinearOptions;
using torch::nn::FlattenOptions;
using torch::nn::LinearOptions;
using torch::nn::UnflattenOptions;

}  // namespace nn
}  // namespace smp
