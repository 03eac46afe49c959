// Padding, loss, transformer and vision layers of smp::nn against torch::nn: the same bits, here
// and on another rank.
#include <torch/nn/modules.h>

#include "module/layer_check.h"
#include "smp/nn.h"

namespace smp::test::losses {
namespace {

using namespace torch::nn;

Tensor signs(at::IntArrayRef shape) { return numbers(2, shape) * 2 - 1; }
Tensor halves(at::IntArrayRef shape) { return numbers(2, shape).to(torch::kFloat); }

LAYER(ReflectionPad1d, (1), input({1, 2, 4}))
LAYER(ReflectionPad2d, (1), input({1, 2, 4, 4}))
LAYER(ReflectionPad3d, (1), input({1, 2, 4, 4, 4}))
LAYER(ReplicationPad1d, (1), input({1, 2, 4}))
LAYER(ReplicationPad2d, (1), input({1, 2, 4, 4}))
LAYER(ReplicationPad3d, (1), input({1, 2, 4, 4, 4}))
LAYER(ZeroPad1d, (1), input({1, 2, 4}))
LAYER(ZeroPad2d, (1), input({1, 2, 4, 4}))
LAYER(ZeroPad3d, (1), input({1, 2, 4, 4, 4}))
LAYER(ConstantPad1d, (1, 2.0), input({1, 2, 4}))
LAYER(ConstantPad2d, (1, 2.0), input({1, 2, 4, 4}))
LAYER(ConstantPad3d, (1, 2.0), input({1, 2, 4, 4, 4}))

LAYER(L1Loss, (), input({2, 3}), input({2, 3}) + 1)
LAYER(KLDivLoss, (KLDivLossOptions().reduction(torch::kBatchMean)), input({2, 3}).log_softmax(1),
      input({2, 3}).softmax(1))
LAYER(MSELoss, (), input({2, 3}), input({2, 3}) + 1)
LAYER(BCELoss, (), input({2, 3}).sigmoid(), halves({2, 3}))
LAYER(HingeEmbeddingLoss, (), input({2, 3}), signs({2, 3}))
LAYER(MultiMarginLoss, (), input({2, 3}), numbers(3, {2}))
LAYER(CosineEmbeddingLoss, (), input({2, 3}), input({2, 3}) + 1, signs({2}))
LAYER(SmoothL1Loss, (), input({2, 3}), input({2, 3}) + 1)
LAYER(HuberLoss, (), input({2, 3}), input({2, 3}) + 1)
LAYER(MultiLabelMarginLoss, (), input({2, 3}), torch::tensor({{0, -1, -1}, {2, 1, -1}}))
LAYER(SoftMarginLoss, (), input({2, 3}), signs({2, 3}))
LAYER(MultiLabelSoftMarginLoss, (), input({2, 3}), halves({2, 3}))
LAYER(TripletMarginLoss, (), input({2, 3}), input({2, 3}) + 1, input({2, 3}) - 2)
LAYER(TripletMarginWithDistanceLoss, (), input({2, 3}), input({2, 3}) + 1, input({2, 3}) - 2)
LAYER(CTCLoss, (), input({5, 1, 4}).log_softmax(2), torch::tensor({{1, 2}}), torch::tensor({5}),
      torch::tensor({2}))
LAYER(PoissonNLLLoss, (), input({2, 3}), input({2, 3}).abs())
LAYER(MarginRankingLoss, (), input({2}), input({2}) + 1, signs({2}))
LAYER(NLLLoss, (), input({2, 3}).log_softmax(1), numbers(3, {2}))
LAYER(CrossEntropyLoss, (), input({2, 3}), numbers(3, {2}))
LAYER(BCEWithLogitsLoss, (), input({2, 3}), halves({2, 3}))
LAYER(AdaptiveLogSoftmaxWithLoss, (AdaptiveLogSoftmaxWithLossOptions(4, 8, {3})), input({5, 4}),
      numbers(8, {5}))

LAYER(TransformerEncoderLayer, (TransformerEncoderLayerOptions(8, 2).dim_feedforward(16)),
      input({3, 2, 8}))
LAYER(TransformerDecoderLayer, (TransformerDecoderLayerOptions(8, 2).dim_feedforward(16)),
      input({3, 2, 8}), input({4, 2, 8}))
LAYER(TransformerEncoder,
      (TransformerEncoderOptions(TransformerEncoderLayerOptions(8, 2).dim_feedforward(16), 2)),
      input({3, 2, 8}))
LAYER(TransformerDecoder,
      (TransformerDecoderOptions(TransformerDecoderLayerOptions(8, 2).dim_feedforward(16), 2)),
      input({3, 2, 8}), input({4, 2, 8}))
LAYER(Transformer, (TransformerOptions(8, 2, 1, 1).dim_feedforward(16)), input({4, 2, 8}),
      input({3, 2, 8}))

LAYER(Fold, (FoldOptions({4, 4}, {2, 2})), input({1, 4, 9}))
LAYER(Unfold, (UnfoldOptions({2, 2})), input({1, 2, 4, 4}))
LAYER(PixelShuffle, (2), input({1, 4, 2, 2}))
LAYER(PixelUnshuffle, (2), input({1, 1, 4, 4}))
LAYER(Upsample, (UpsampleOptions().scale_factor(std::vector<double>{2, 2}).mode(torch::kNearest)),
      input({1, 1, 2, 2}))
LAYER(CosineSimilarity, (), input({2, 3}), input({2, 3}) + 1)
LAYER(PairwiseDistance, (), input({2, 3}), input({2, 3}) + 1)

TEST(SmpNn, RoutesTheOtherMethodsOfAdaptiveLogSoftmax) {
  const auto options = AdaptiveLogSoftmaxWithLossOptions(4, 8, {3});
  smp::nn::AdaptiveLogSoftmaxWithLoss here(options);
  smp::nn::AdaptiveLogSoftmaxWithLoss there(options);
  FakeHandler handler({here.ptr(), there.ptr()}, {{"", 1}});
  const auto logits = here->log_prob(input({5, 4}));
  EXPECT_TRUE(at::equal(here->predict(input({5, 4})), logits.argmax(1)));
  EXPECT_EQ(handler.requests.size(), 2u);
}

TEST(SmpNn, IsSafeToOpenAsANamespace) {
  using namespace smp::nn;
  smp::nn::Linear layer(smp::nn::LinearOptions(2, 3).bias(false));
  EXPECT_FALSE(layer->bias.defined());
  EXPECT_TRUE(at::equal(smp::nn::functional::relu(torch::tensor({-1.0})), torch::tensor({0.0})));
}

}  // namespace
}  // namespace smp::test::losses
