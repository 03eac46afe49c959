// smp/nn/loss.h: loss functions, as in torch::nn but routed.
#pragma once

#include <torch/nn/modules/adaptive.h>
#include <torch/nn/modules/loss.h>

#include "smp/nn/layer.h"

namespace smp {

template <>
struct Codec<torch::nn::ASMoutput> {
  static void encode(Writer& out, const torch::nn::ASMoutput& value) {
    detail::put_all(out, {"output", "loss"}, value.output, value.loss);
  }
  static torch::nn::ASMoutput decode(Reader& in) {
    return detail::get_all<torch::nn::ASMoutput>(in, detail::Parts<at::Tensor, double>{});
  }
};

SMP_NN_LAYER(L1Loss)
SMP_NN_LAYER(KLDivLoss)
SMP_NN_LAYER(MSELoss)
SMP_NN_LAYER(BCELoss)
SMP_NN_LAYER(HingeEmbeddingLoss)
SMP_NN_LAYER(MultiMarginLoss)
SMP_NN_LAYER(CosineEmbeddingLoss)
SMP_NN_LAYER(SmoothL1Loss)
SMP_NN_LAYER(HuberLoss)
SMP_NN_LAYER(MultiLabelMarginLoss)
SMP_NN_LAYER(SoftMarginLoss)
SMP_NN_LAYER(MultiLabelSoftMarginLoss)
SMP_NN_LAYER(TripletMarginLoss)
SMP_NN_RANDOM_LAYER(TripletMarginWithDistanceLoss)
SMP_NN_LAYER(CTCLoss)
SMP_NN_LAYER(PoissonNLLLoss)
SMP_NN_LAYER(MarginRankingLoss)
SMP_NN_LAYER(NLLLoss)
SMP_NN_LAYER(CrossEntropyLoss)
SMP_NN_LAYER(BCEWithLogitsLoss)
SMP_NN_LAYER(AdaptiveLogSoftmaxWithLoss, log_prob, predict)

namespace nn {

using torch::nn::AdaptiveLogSoftmaxWithLossOptions;
using torch::nn::ASMoutput;
using torch::nn::BCELossOptions;
using torch::nn::BCEWithLogitsLossOptions;
using torch::nn::CosineEmbeddingLossOptions;
using torch::nn::CrossEntropyLossOptions;
using torch::nn::CTCLossOptions;
using torch::nn::HingeEmbeddingLossOptions;
using torch::nn::HuberLossOptions;
using torch::nn::KLDivLossOptions;
using torch::nn::L1LossOptions;
using torch::nn::MarginRankingLossOptions;
using torch::nn::MSELossOptions;
using torch::nn::MultiLabelMarginLossOptions;
using torch::nn::MultiLabelSoftMarginLossOptions;
using torch::nn::MultiMarginLossOptions;
using torch::nn::NLLLossOptions;
using torch::nn::PoissonNLLLossOptions;
using torch::nn::SmoothL1LossOptions;
using torch::nn::SoftMarginLossOptions;
using torch::nn::TripletMarginLossOptions;
using torch::nn::TripletMarginWithDistanceLossOptions;

}  // namespace nn
}  // namespace smp
