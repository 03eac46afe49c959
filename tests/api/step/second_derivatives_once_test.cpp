// A pass over a remote module and over gradients of it goes through the module's graph once, as in
// one process: what is computed there is computed once, and hooks see whole gradients.
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>

#include "api/second_derivatives.h"

namespace smp {
namespace second_derivatives_once_test {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Backwards of Counted in one process and on ranks.
std::atomic<int> counts[2];

/// 2x, which counts its backwards.
struct Counted : torch::autograd::Function<Counted> {
  static Tensor forward(AutogradContext* /*context*/, const Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext* /*context*/, variable_list gradients) {
    if (!is_tracing()) ++counts[is_initialized()];
    return {gradients[0] * 2};
  }
};

/// What Counted gives has a gradient of its own from what is computed of its gradient. The hook is
/// not linear: parts of a gradient would not do.
struct SquareImpl : torch::nn::Module {
  SquareImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    auto inner = Counted::apply(linear(x));
    if (inner.requires_grad()) {
      inner.register_hook([](const Tensor& gradient) { return gradient.sin(); });
    }
    return inner * inner;
  }
  nn::Linear linear;
};
SMP_MODULE(Square);

/// A module that calls another one, which may be on yet another rank.
struct AroundImpl : torch::nn::Module {
  AroundImpl() : inner(register_module("inner", Square())) {}
  Tensor forward(const Tensor& x) { return inner(x.sin()) * x; }
  Square inner;
};
SMP_MODULE(Around);

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", Square())), second(register_module("second", Around())) {}
  Tensor forward(const Tensor& x) { return second(first(x).tanh()); }
  Square first;
  Around second;
};
SMP_MODULE(Net);

Net make_net() {
  torch::manual_seed(5);
  return {};
}

template <class Body>
void expect_as_often_as_in_one_process(const Body& body) {
  for (const char* schedule : {"simple", "interleaved", "zero_bubble"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(ranks) + " ranks");
      SecondDerivatives how{{{"first", 1}, {"second", 1}, {"second.inner", 2}}, ranks, 3};
      how.config.pipeline = schedule;
      counts[0] = counts[1] = 0;
      expect_as_in_one_process<Net>([] { return make_net(); }, how, body);
      EXPECT_GT(counts[0], 0);
      EXPECT_EQ(counts[1], counts[0]);
    }
  }
}

TEST(SecondDerivativesOnce, OfAPenalty) {
  expect_as_often_as_in_one_process([](Net& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net(input);
    backward(y.mean() + slope_penalty(differentiate({y.sum()}, {input})[0]));
  });
}

// Nothing but what a younger pass has left comes to the modules.
TEST(SecondDerivativesOnce, WhereTheOutputsHaveNoGradientOfTheirOwn) {
  expect_as_often_as_in_one_process([](Net& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    backward(slope_penalty(differentiate({net(input).sum()}, {input})[0]));
  });
}

TEST(SecondDerivativesOnce, OfTwoGradients) {
  expect_as_often_as_in_one_process([](Net& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net(input);
    const auto one = differentiate({y.select(1, 0).sum()}, {input})[0];
    const auto other = differentiate({y.select(1, 1).square().sum()}, {input})[0];
    backward(y.sum() + (one * other).sum());
  });
}

TEST(SecondDerivativesOnce, OfGradientsOfGradients) {
  expect_as_often_as_in_one_process([](Net& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net->first(input);
    const auto gradient = differentiate({y.sum()}, {input})[0];
    const auto second = differentiate({gradient.square().sum()}, {input})[0];
    backward(y.sum() + gradient.sum() + second.square().sum());
  });
}

}  // namespace second_derivatives_once_test
}  // namespace smp
