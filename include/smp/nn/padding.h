// smp/nn/padding.h: padding, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/padding.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(ReflectionPad1d)
SMP_NN_LAYER(ReflectionPad2d)
SMP_NN_LAYER(ReflectionPad3d)
SMP_NN_LAYER(ReplicationPad1d)
SMP_NN_LAYER(ReplicationPad2d)
SMP_NN_LAYER(ReplicationPad3d)
SMP_NN_LAYER(ZeroPad1d)
SMP_NN_LAYER(ZeroPad2d)
SMP_NN_LAYER(ZeroPad3d)
SMP_NN_LAYER(ConstantPad1d)
SMP_NN_LAYER(ConstantPad2d)
SMP_NN_LAYER(ConstantPad3d)

namespace nn {

using torch::nn::ConstantPad1dOptions;
using torch::nn::ConstantPad2dOptions;
using torch::nn::ConstantPad3dOptions;
using torch::nn::ConstantPadOptions;
using torch::nn::ReflectionPad1dOptions;
using torch::nn::ReflectionPad2dOptions;
using torch::nn::ReflectionPad3dOptions;
using torch::nn::ReflectionPadOptions;
using torch::nn::ReplicationPad1dOptions;
using torch::nn::ReplicationPad2dOptions;
using torch::nn::ReplicationPad3dOptions;
using torch::nn::ReplicationPadOptions;
using torch::nn::ZeroPad1dOptions;
using torch::nn::ZeroPad2dOptions;
using torch::nn::ZeroPad3dOptions;
using torch::nn::ZeroPadOptions;

}  // namespace nn
}  // namespace smp
