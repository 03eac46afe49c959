// Second derivatives through layers of LibTorch that other ranks have.
#include <gmock/gmock.h>

#include "api/second_derivatives.h"

namespace smp {
namespace second_derivatives_of_layers_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

/// Its nodes read the weights themselves, not views of them.
struct ScaledImpl : torch::nn::Module {
  ScaledImpl()
      : weight(register_parameter("weight", torch::linspace(1, 2, 3, torch::kDouble))),
        norm(register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({3})))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(x * weight).pow(3); }
  Tensor weight;
  nn::LayerNorm norm;
};
SMP_MODULE(Scaled);

struct WithScaledImpl : torch::nn::Module {
  WithScaledImpl() : scaled(register_module("scaled", Scaled())) {}
  Scaled scaled;
};
SMP_MODULE(WithScaled);

// The trial runs these nodes in the body, which does not make it a reader of the weights.
TEST(SecondDerivativesOfLayers, OfWeightsThatNodesRead) {
  SecondDerivatives how{{{"scaled", 1}}};
  expect_as_in_one_process<WithScaled>(
      [] { return WithScaled(); }, how,
      [](WithScaled& net, const Tensor& x, const LossBackward& backward) {
        const auto input = leaf(x);
        backward(slope_penalty(differentiate({net->scaled(input).sum()}, {input})[0]));
      });
}

struct NormedImpl : torch::nn::Module {
  NormedImpl()
      : linear(register_module("linear", nn::Linear(nn::LinearOptions(3, 3).bias(false)))),
        norm(register_module("norm", nn::BatchNorm1d(3))) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return norm(linear(x)).tanh(); }
  nn::Linear linear;
  nn::BatchNorm1d norm;
};
SMP_MODULE(Normed);

struct WithNormedImpl : torch::nn::Module {
  WithNormedImpl() : normed(register_module("normed", Normed())) {}
  Normed normed;
};
SMP_MODULE(WithNormed);

// What the backward of a normalisation is given of its running statistics it does not write.
TEST(SecondDerivativesOfLayers, OfNormalisationsWithRunningStatistics) {
  SecondDerivatives how{{{"normed", 1}}};
  how.rows = 6;
  const auto make = [] {
    torch::manual_seed(8);
    return WithNormed();
  };
  expect_as_in_one_process<WithNormed>(
      make, how, [](WithNormed& net, const Tensor& x, const LossBackward& backward) {
        // Rows on a line would be normalised to the same few numbers, and the penalty be of
        // nothing.
        const auto input = leaf((x * 7).sin());
        const auto y = net->normed(input);
        backward(y.sin().mean() + slope_penalty(differentiate({y.square().sum()}, {input})[0]));
      });
}

/// Attention as LibTorch computes it, whose fast kernels can be differentiated once.
struct AttendingImpl : torch::nn::Module {
  AttendingImpl() : queries(register_module("queries", nn::Linear(3, 3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    const auto heads = x.view({1, 1, x.size(0), 3});
    return at::scaled_dot_product_attention(queries(heads), heads, heads).view({-1, 3});
  }
  nn::Linear queries;
};
SMP_MODULE(Attending);

struct WithAttendingImpl : torch::nn::Module {
  WithAttendingImpl() : attending(register_module("attending", Attending())) {}
  Attending attending;
};
SMP_MODULE(WithAttending);

TEST(SecondDerivativesOfLayers, OfAttentionNeedTheKernelThatHasThem) {
  const auto train = [] {
    SecondDerivatives how{{{"attending", 1}}};
    expect_as_in_one_process<WithAttending>(
        [] {
          torch::manual_seed(9);
          return WithAttending();
        },
        how,
        [](WithAttending& net, const Tensor& x, const LossBackward& backward) {
          const auto input = leaf(x);
          const auto gradient = differentiate({net->attending(input).square().sum()}, {input})[0];
          if (is_initialized() || !at::globalContext().userEnabledFlashSDP()) {
            backward(gradient.square().sum());
          }
        });
  };
  EXPECT_THAT(refusal<std::exception>(train),
              AllOf(HasSubstr("attending (backward)"), HasSubstr("setSDPUseFlash(false)")));
  at::globalContext().setSDPUseFlash(false);
  train();
  at::globalContext().setSDPUseFlash(true);
}

}  // namespace second_derivatives_of_layers_test
}  // namespace smp
