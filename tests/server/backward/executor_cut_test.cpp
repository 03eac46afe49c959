// tests/server/backward/executor_cut_test.cpp: graphs cut into modules whose backward runs
// elsewhere, against the uncut graph under LibTorch's own engine.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "server/backward/executor_testing.h"

namespace smp::server::test {
namespace {

/// Builds a loss from its leaves; `remote` puts the module calls behind cuts.
using Model = std::function<at::Tensor(const Tensors&, bool remote)>;

/// Gradients of the uncut model by LibTorch's engine, and of the cut one by ours.
void expect_equal_gradients(int parameters, const Model& model, bool bits = true) {
  const auto p = leaves(parameters), q = leaves(parameters);
  backward(Engine::kStock, {model(p, false)});
  backward(Engine::kOurs, {model(q, true)});
  EXPECT_TRUE(close(gradients_of(p), gradients_of(q), 1e-12));
  EXPECT_TRUE(!bits || same_bits(gradients_of(p), gradients_of(q)));
}

at::Tensor layer(bool remote, const at::Tensor& x, const at::Tensor& weight, Cut cut = {}) {
  const auto body = [weight](const Tensors& in) { return Tensors{in[0].mm(weight).tanh()}; };
  return call(remote, {x}, body, cut)[0];
}

class ExecutorCut : public WithFibers {};

TEST_F(ExecutorCut, IsInvisibleInAChain) {
  expect_equal_gradients(4, [](const Tensors& p, bool remote) {
    auto x = p[0];
    for (std::size_t i = 1; i < p.size(); ++i) x = layer(remote, x, p[i]);
    return x.sum();
  });
}

TEST_F(ExecutorCut, IsInvisibleInAResidualStream) {
  expect_equal_gradients(4, [](const Tensors& p, bool remote) {
    auto x = p[0];
    for (std::size_t i = 1; i < p.size(); ++i) x = x + layer(remote, x, p[i]);
    return (x * x).sum();
  });
}

TEST_F(ExecutorCut, AgreesForAModuleThatIsCalledTenTimes) {
  const Model model = [](const Tensors& p, bool remote) {
    const auto cell = [&p](const Tensors& in) { return Tensors{(in[0].mm(p[1]) + in[1]).tanh()}; };
    auto h = p[0];
    for (int i = 0; i < 10; ++i) h = call(remote, {h, p[2]}, cell)[0];
    return h.pow(2).sum();
  };
  expect_equal_gradients(3, model, false);
}

TEST_F(ExecutorCut, IsInvisibleForUnusedOutputs) {
  expect_equal_gradients(3, [](const Tensors& p, bool remote) {
    const auto body = [&p](const Tensors& in) {
      return Tensors{in[0].mm(p[1]), in[0].sin(), in[1] * 2};
    };
    const auto outputs = call(remote, {p[0], p[2]}, body);
    return (outputs[0] * outputs[2]).sum();
  });
}

/// Hooks would see no gradient, and what would be saved is overwritten: one process never goes
/// there.
TEST_F(ExecutorCut, IsInvisibleForArgumentsThatAreNotUsed) {
  expect_equal_gradients(3, [](const Tensors& p, bool remote) {
    const auto saved = p[1] * 2;
    auto unused = saved * saved;
    unused.register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    saved.add_(1);
    const auto body = [&p](const Tensors& in) {
      in[1].register_hook([](const at::Tensor& gradient) { return gradient * 5; });
      return Tensors{in[0].mm(p[2])};
    };
    return call(remote, {p[0], unused}, body)[0].sum();
  });
}

TEST_F(ExecutorCut, IsInvisibleForHooksOfUnusedOutputs) {
  expect_equal_gradients(2, [](const Tensors& p, bool remote) {
    const auto body = [&p](const Tensors& in) { return Tensors{in[0].mm(p[1]), in[0].sin()}; };
    const auto outputs = call(remote, {p[0]}, body);
    outputs[1].register_hook([](const at::Tensor& gradient) { return gradient * 3; });
    outputs[1].retain_grad();
    return outputs[0].sum();
  });
}

TEST_F(ExecutorCut, IsInvisibleForArgumentsAndOutputsWithoutGradient) {
  expect_equal_gradients(2, [](const Tensors& p, bool remote) {
    const auto body = [&p](const Tensors& in) {
      return Tensors{in[0].mm(p[1]) + in[1], in[0] > 0};
    };
    const auto outputs = call(remote, {at::ones({4, 4}, at::kDouble), p[0]}, body);
    EXPECT_FALSE(outputs[1].requires_grad());
    return outputs[0].sum();
  });
}

TEST_F(ExecutorCut, IsInvisibleForInPlaceOperationsOnInputsAndOutputs) {
  expect_equal_gradients(2, [](const Tensors& p, bool remote) {
    const auto body = [&p](const Tensors& in) { return Tensors{in[0].mul_(1.5).mm(p[1])}; };
    const auto y = call(remote, {p[0] * 1}, body)[0];
    y.mul_(2);
    y.relu_();
    return y.sum();
  });
}

TEST_F(ExecutorCut, IsInvisibleForViewsOfOutputs) {
  expect_equal_gradients(2, [](const Tensors& p, bool remote) {
    const auto body = [&p](const Tensors& in) { return Tensors{in[0].mm(p[1]).t()}; };
    const auto y = call(remote, {p[0]}, body)[0];
    const auto view = y.narrow(0, 1, 2);
    view.mul_(3);
    return y.sum() + view.select(0, 0).pow(2).sum();
  });
}

TEST_F(ExecutorCut, AgreesForModulesChosenByTheirInput) {
  const Model model = [](const Tensors& p, bool remote) {
    auto x = p[0];
    for (int i = 0; i < 6; ++i) {
      x = layer(remote, x, x.sum().item<double>() > 0 ? p[1] : p[2]);
    }
    return x.sum();
  };
  expect_equal_gradients(3, model, false);
}

TEST_F(ExecutorCut, IsInvisibleForTwoTowersInFlightTogether) {
  expect_equal_gradients(4, [](const Tensors& p, bool remote) {
    const auto x = layer(remote, p[3], p[0], {.yields = 9});
    const auto y = layer(remote, p[3], p[1], {.yields = 1});
    return (x.mm(p[2]) * y).sum();
  });
}

TEST_F(ExecutorCut, AgreesForSixConsumersOfOneTensor) {
  const Model model = [](const Tensors& p, bool remote) {
    const auto shared = p[0].tanh();
    auto sum = at::zeros({4, 4}, at::kDouble);
    for (int i = 0; i < 6; ++i) {
      sum = sum + layer(remote, shared * (i + 1), p[1], {.yields = 7 - i});
    }
    return sum.sum();
  };
  expect_equal_gradients(2, model, false);
}

TEST_F(ExecutorCut, CallsEveryTensorHookOnceWithTheWholeGradient) {
  const auto run = [](bool remote) {
    const auto p = leaves(2);
    std::vector<double> sums;
    const auto hook = [&sums](double factor) {
      return [&sums, factor](const at::Tensor& gradient) {
        sums.push_back(gradient.sum().item<double>());
        return gradient * factor;
      };
    };
    p[0].register_hook(hook(2));
    const auto x = p[0] * 3;
    x.register_hook(hook(1));
    const auto body = [&](const Tensors& in) {
      in[0].register_hook(hook(1));
      return Tensors{in[0].mm(p[1]).tanh()};
    };
    const auto y = call(remote, {x}, body)[0];
    y.register_hook(hook(0.5));
    backward(remote ? Engine::kOurs : Engine::kStock, {y.sum()});
    auto result = gradients_of(p);
    std::sort(sums.begin(), sums.end());
    result.push_back(at::tensor(sums, at::kDouble));
    return result;
  };
  const auto expected = run(false), actual = run(true);
  EXPECT_TRUE(same_bits(expected, actual));
  EXPECT_EQ(actual.back().numel(), 4);
}

TEST_F(ExecutorCut, RetainsGradientsOnBothSides) {
  const auto p = leaves(2);
  const auto x = p[0] * 2;
  x.retain_grad();
  Tensors inside;
  const auto body = [&](const Tensors& in) {
    inside = {in[0], in[0].mm(p[1])};
    for (const auto& tensor : inside) tensor.retain_grad();
    return Tensors{inside[1].tanh()};
  };
  const auto y = call_remotely({x}, body)[0];
  y.retain_grad();
  backward(y.sum());
  EXPECT_TRUE(same_bits(x.grad(), inside[0].grad()));
  EXPECT_TRUE(inside[1].grad().defined());
  EXPECT_TRUE(same_bits(y.grad(), at::ones({4, 4}, at::kDouble)));
}

TEST_F(ExecutorCut, RunsTwiceIfTheGraphIsKept) {
  const auto run = [](Engine engine, bool remote) {
    const auto p = leaves(2);
    const auto loss = (layer(remote, p[0], p[1]) + p[0]).pow(2).sum();
    backward(engine, {loss}, {}, {.keep_graph = true});
    backward(engine, {loss});
    return gradients_of(p);
  };
  EXPECT_TRUE(same_bits(run(Engine::kStock, false), run(Engine::kOurs, true)));
}

TEST_F(ExecutorCut, GivesCapturesOfTensorsAboveAndBelow) {
  const auto run = [](Engine engine, bool remote) {
    const auto p = leaves(2);
    const auto x = p[0] * 2;
    const auto y = layer(remote, x, p[1]);
    return grad(engine, {(y * y).sum()}, {y, x, p[0]});
  };
  EXPECT_TRUE(same_bits(run(Engine::kStock, false), run(Engine::kOurs, true)));
}

TEST_F(ExecutorCut, KeepsPassesOfSeveralFibersApart) {
  const auto alone = leaves(2), together = leaves(2);
  const auto loss_of = [](const Tensors& p) {
    return layer(true, layer(true, p[0], p[1]), p[1]).sum();
  };
  backward(loss_of(alone));
  std::vector<Tensors> results(4);
  for (auto& result : results) {
    fiber::Scheduler::instance().spawn(
        [&] {
          const auto p = leaves(2);
          backward(loss_of(p));
          result = gradients_of(p);
        },
        base::FiberSlots{}, 1 << 20);
  }
  let_other_fibers_finish();
  for (const auto& result : results) EXPECT_TRUE(same_bits(result, gradients_of(alone)));
}

}  // namespace
}  // namespace smp::server::test
