// smp/nn/activation.h: activations, softmax and attention, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/activation.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(ELU)
SMP_NN_LAYER(SELU)
SMP_NN_LAYER(Hardshrink)
SMP_NN_LAYER(Hardtanh)
SMP_NN_LAYER(LeakyReLU)
SMP_NN_LAYER(LogSigmoid)
SMP_NN_LAYER(Softmax)
SMP_NN_LAYER(Softmin)
SMP_NN_LAYER(LogSoftmax)
SMP_NN_LAYER(Softmax2d)
SMP_NN_LAYER(PReLU)
SMP_NN_LAYER(ReLU)
SMP_NN_LAYER(ReLU6)
SMP_NN_RANDOM_LAYER(RReLU)
SMP_NN_LAYER(CELU)
SMP_NN_LAYER(GLU)
SMP_NN_LAYER(GELU)
SMP_NN_LAYER(SiLU)
SMP_NN_LAYER(Mish)
SMP_NN_LAYER(Sigmoid)
SMP_NN_LAYER(Softplus)
SMP_NN_LAYER(Softshrink)
SMP_NN_LAYER(Softsign)
SMP_NN_LAYER(Tanh)
SMP_NN_LAYER(Tanhshrink)
SMP_NN_LAYER(Threshold)
SMP_NN_RANDOM_LAYER(MultiheadAttention)

namespace nn {

using torch::nn::CELUOptions;
using torch::nn::ELUOptions;
using torch::nn::GELUOptions;
using torch::nn::GLUOptions;
using torch::nn::HardshrinkOptions;
using torch::nn::HardtanhOptions;
using torch::nn::LeakyReLUOptions;
using torch::nn::LogSoftmaxOptions;
using torch::nn::MultiheadAttentionOptions;
using torch::nn::PReLUOptions;
using torch::nn::ReLU6Options;
using torch::nn::ReLUOptions;
using torch::nn::RReLUOptions;
using torch::nn::SELUOptions;
using torch::nn::SoftmaxOptions;
using torch::nn::SoftminOptions;
using torch::nn::SoftplusOptions;
using torch::nn::SoftshrinkOptions;
using torch::nn::ThresholdOptions;

}  // namespace nn
}  // namespace smp
