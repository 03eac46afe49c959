// smp/nn.h: smp::nn, which has every torch::nn layer as a routed one under the same name
// (paper §4.1), and the blocks of Llama-shaped models. `namespace nn = smp::nn;` is often the whole
// change to a model's file. Options, functional, init and utils are torch's own.
#pragma once

#include <torch/nn/functional.h>
#include <torch/nn/init.h>
#include <torch/nn/utils.h>

#include "smp/nn/activation.h"
#include "smp/nn/any.h"
#include "smp/nn/attention_core.h"
#include "smp/nn/container.h"
#include "smp/nn/conv.h"
#include "smp/nn/decoder_layer.h"
#include "smp/nn/dropout.h"
#include "smp/nn/embedding.h"
#include "smp/nn/gated_mlp.h"
#include "smp/nn/grouped_query_attention.h"
#include "smp/nn/key_value_cache.h"
#include "smp/nn/linear.h"
#include "smp/nn/loss.h"
#include "smp/nn/mixture_of_experts.h"
#include "smp/nn/normalization.h"
#include "smp/nn/padding.h"
#include "smp/nn/pooling.h"
#include "smp/nn/recurrent.h"
#include "smp/nn/rms_norm.h"
#include "smp/nn/rotary_embedding.h"
#include "smp/nn/scaled_init.h"
#include "smp/nn/sequential.h"
#include "smp/nn/transformer.h"
#include "smp/nn/vision.h"

namespace smp::nn {

namespace functional = torch::nn::functional;
namespace init = torch::nn::init;
namespace utils = torch::nn::utils;

}  // namespace smp::nn
