// smp/nn/vision.h: folding, shuffling, upsampling and distances, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/distance.h>
#include <torch/nn/modules/fold.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/nn/modules/upsampling.h>

#include "smp/nn/layer.h"

namespace smp {

SMP_NN_LAYER(Fold)
SMP_NN_LAYER(Unfold)
SMP_NN_LAYER(PixelShuffle)
SMP_NN_LAYER(PixelUnshuffle)
SMP_NN_LAYER(Upsample)
SMP_NN_LAYER(CosineSimilarity)
SMP_NN_LAYER(PairwiseDistance)

namespace nn {

using torch::nn::CosineSimilarityOptions;
using torch::nn::FoldOptions;
using torch::nn::PairwiseDistanceOptions;
using torch::nn::PixelShuffleOptions;
using torch::nn::PixelUnshuffleOptions;
using torch::nn::UnfoldOptions;
using torch::nn::UpsampleOptions;

}  // namespace nn
}  // namespace smp
