// Linear, convolution, normalisation, embedding, recurrent, dropout, activation and pooling layers
// of smp::nn against torch::nn: the same bits, here and on another rank.
#include <torch/nn/modules.h>

#include "module/layer_check.h"
#include "smp/nn.h"

namespace smp::test::layers {
namespace {

using namespace torch::nn;

LAYER(Identity, (), input({2, 3}))
LAYER(Linear, (3, 4), input({2, 3}))
LAYER(Flatten, (), input({2, 3, 4}))
LAYER(Unflatten, (UnflattenOptions(1, {2, 3})), input({2, 6}))
LAYER(Bilinear, (3, 4, 5), input({2, 3}), input({2, 4}))

LAYER(Conv1d, (2, 3, 3), input({2, 2, 8}))
LAYER(Conv2d, (Conv2dOptions(2, 3, 3).padding(1)), input({2, 2, 6, 6}))
LAYER(Conv3d, (2, 3, 2), input({2, 2, 4, 4, 4}))
LAYER(ConvTranspose1d, (2, 3, 3), input({2, 2, 8}))
LAYER(ConvTranspose2d, (ConvTranspose2dOptions(2, 3, 3).stride(2)), input({2, 2, 4, 4}),
      std::vector<std::int64_t>{10, 10})
LAYER(ConvTranspose3d, (2, 3, 2), input({2, 2, 3, 3, 3}), std::nullopt)

LAYER(BatchNorm1d, (3), input({4, 3}))
LAYER(BatchNorm2d, (3), input({2, 3, 4, 4}))
LAYER(BatchNorm3d, (3), input({2, 3, 2, 2, 2}))
LAYER(InstanceNorm1d, (3), input({2, 3, 5}))
LAYER(InstanceNorm2d, (3), input({2, 3, 4, 4}))
LAYER(InstanceNorm3d, (3), input({2, 3, 2, 2, 2}))
LAYER(LayerNorm, (LayerNormOptions({3})), input({2, 3}))
LAYER(GroupNorm, (2, 4), input({2, 4, 3}))
LAYER(LocalResponseNorm, (2), input({2, 4, 3}))
LAYER(CrossMapLRN2d, (2), input({2, 4, 3, 3}))

LAYER(Embedding, (10, 3), numbers(10, {2, 4}))
LAYER(EmbeddingBag, (10, 3), numbers(10, {2, 4}))

LAYER(RNN, (3, 4), input({5, 2, 3}))
LAYER(LSTM, (LSTMOptions(3, 4).num_layers(2).dropout(0.5)), input({5, 2, 3}))
LAYER(GRU, (3, 4), input({5, 2, 3}), torch::zeros({1, 2, 4}))
LAYER(RNNCell, (3, 4), input({2, 3}))
LAYER(LSTMCell, (3, 4), input({2, 3}), std::tuple(input({2, 4}), input({2, 4})))
LAYER(GRUCell, (3, 4), input({2, 3}), input({2, 4}))

LAYER(Dropout, (0.5), input({4, 4}))
LAYER(Dropout2d, (), input({2, 4, 3, 3}))
LAYER(Dropout3d, (), input({2, 4, 2, 2, 2}))
LAYER(AlphaDropout, (), input({4, 4}))
LAYER(FeatureAlphaDropout, (), input({2, 4, 3}))

LAYER(ELU, (), input({2, 3}))
LAYER(SELU, (), input({2, 3}))
LAYER(Hardshrink, (), input({2, 3}))
LAYER(Hardtanh, (), input({2, 3}))
LAYER(LeakyReLU, (), input({2, 3}))
LAYER(LogSigmoid, (), input({2, 3}))
LAYER(Softmax, (1), input({2, 3}))
LAYER(Softmin, (1), input({2, 3}))
LAYER(LogSoftmax, (1), input({2, 3}))
LAYER(Softmax2d, (), input({2, 3, 2, 2}))
LAYER(PReLU, (), input({2, 3}))
LAYER(ReLU, (), input({2, 3}))
LAYER(ReLU6, (), input({2, 3}))
LAYER(RReLU, (), input({2, 3}))
LAYER(CELU, (), input({2, 3}))
LAYER(GLU, (), input({2, 4}))
LAYER(GELU, (), input({2, 3}))
LAYER(SiLU, (), input({2, 3}))
LAYER(Mish, (), input({2, 3}))
LAYER(Sigmoid, (), input({2, 3}))
LAYER(Softplus, (), input({2, 3}))
LAYER(Softshrink, (), input({2, 3}))
LAYER(Softsign, (), input({2, 3}))
LAYER(Tanh, (), input({2, 3}))
LAYER(Tanhshrink, (), input({2, 3}))
LAYER(Threshold, (0.1, 20), input({2, 3}))
LAYER(MultiheadAttention, (8, 2), input({3, 2, 8}), input({3, 2, 8}), input({3, 2, 8}))

LAYER(AvgPool1d, (2), input({1, 2, 6}))
LAYER(AvgPool2d, (2), input({1, 2, 4, 4}))
LAYER(AvgPool3d, (2), input({1, 2, 4, 4, 4}))
LAYER(MaxPool1d, (2), input({1, 2, 6}))
LAYER(MaxPool2d, (2), input({1, 2, 4, 4}))
LAYER(MaxPool3d, (2), input({1, 2, 4, 4, 4}))
LAYER(AdaptiveMaxPool1d, (2), input({1, 2, 6}))
LAYER(AdaptiveMaxPool2d, (2), input({1, 2, 4, 4}))
LAYER(AdaptiveMaxPool3d, (2), input({1, 2, 4, 4, 4}))
LAYER(AdaptiveAvgPool1d, (2), input({1, 2, 6}))
LAYER(AdaptiveAvgPool2d, (2), input({1, 2, 4, 4}))
LAYER(AdaptiveAvgPool3d, (2), input({1, 2, 4, 4, 4}))
LAYER(MaxUnpool1d, (2), input({1, 1, 2}), torch::tensor({{{1, 2}}}))
LAYER(MaxUnpool2d, (2), input({1, 1, 1, 2}), torch::tensor({{{{1, 6}}}}),
      std::vector<std::int64_t>{1, 1, 2, 4})
LAYER(MaxUnpool3d, (2), input({1, 1, 1, 1, 1}), torch::tensor({{{{{3}}}}}))
LAYER(FractionalMaxPool2d, (FractionalMaxPool2dOptions(2).output_size(2)), input({1, 2, 5, 5}))
LAYER(FractionalMaxPool3d, (FractionalMaxPool3dOptions(2).output_size(2)), input({1, 2, 5, 5, 5}))
LAYER(LPPool1d, (2, 2), input({1, 2, 6}).abs())
LAYER(LPPool2d, (2, 2), input({1, 2, 4, 4}).abs())
LAYER(LPPool3d, (2, 2), input({1, 2, 4, 4, 4}).abs())

TEST(SmpNn, RoutesPackedSequences) {
  const auto packed_input = utils::rnn::pack_padded_sequence(
      input({4, 2, 3}), torch::tensor({4, 2}), /*batch_first=*/false);
  smp::nn::LSTM here(3, 5);
  smp::nn::LSTM there(3, 5);
  FakeHandler handler({here.ptr(), there.ptr()}, {{"", 1}});
  const auto [output, state] = here->forward_with_packed_input(packed_input);
  handler.step_runs = false;
  const auto [expected, expected_state] = there->forward_with_packed_input(packed_input);
  EXPECT_TRUE(at::equal(output.data(), expected.data()));
  EXPECT_TRUE(at::equal(std::get<1>(state), std::get<1>(expected_state)));
  EXPECT_EQ(handler.requests.size(), 1u);
}

TEST(SmpNn, MakesEmbeddingsFromPretrainedTables) {
  const auto table = input({4, 3});
  auto embedding = smp::nn::Embedding::from_pretrained(table);
  EXPECT_TRUE(at::equal(embedding(torch::tensor({2})), table.slice(0, 2, 3)));
  EXPECT_FALSE(embedding->weight.requires_grad());
  EXPECT_TRUE(at::equal(embedding->parameters().at(0), table));
  auto bag = smp::nn::EmbeddingBag::from_pretrained(table);
  EXPECT_EQ(bag(torch::tensor({{0, 1}})).sizes(), (std::vector<std::int64_t>{1, 3}));
}

}  // namespace
}  // namespace smp::test::layers
