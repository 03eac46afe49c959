// smp/nn/transformer.h: transformers, as in torch::nn but routed. Each is one unit for the plan.
#pragma once

#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_RANDOM_LAYER(Transformer)
SMP_NN_RANDOM_LAYER(TransformerEncoder)
SMP_NN_RANDOM_LAYER(TransformerDecoder)
SMP_NN_RANDOM_LAYER(TransformerEncoderLayer)
SMP_NN_RANDOM_LAYER(TransformerDecoderLayer)

namespace nn {

using torch::nn::TransformerDecoderLayerOptions;
using torch::nn::TransformerDecoderOptions;
using torch::nn::TransformerEncoderLayerOptions;
using torch::nn::TransformerEncoderOptions;
using torch::nn::TransformerOptions;

}  // namespace nn
}  // namespace smp
