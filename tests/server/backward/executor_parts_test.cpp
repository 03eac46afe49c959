// tests/server/backward/executor_parts_test.cpp: a backward in two parts
// (server/backward/backward_pass.h).
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function_hook.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "module/node_pointer.h"
#include "server/backward/executor.h"
#include "server/backward/executor_testing.h"
#include "server/graph/product_nodes.h"

namespace smp::server::test {
namespace {

using ::testing::HasSubstr;

/// An execution of one argument.
struct Execution {
  explicit Execution(at::Tensor argument) : inputs{std::move(argument)} {
    boundary = make_boundary(inputs, {true});
  }
  const at::Tensor& x() const { return inputs[0]; }
  const at::Tensor& gradient() const {
    static const at::Tensor none;
    return boundary->captured.empty() ? none : boundary->captured[0];
  }
  WeightPart run_first(const at::Tensor& output, const BackwardOptions& options = {}) const {
    return run_input_part(edges_of({output}), {at::ones_like(output)}, options);
  }

  Tensors inputs;
  NodePointer<BoundaryInput> boundary;
};

/// What `body(x, w, b)` gives in one part and in two, with gradients of x, w and b.
void expect_same_in_two_parts(const std::function<at::Tensor(const Tensors&)>& body,
                              const Tensors& values) {
  const auto run = [&](bool in_two) {
    Execution execution(values[0].detach().clone());
    auto leaves = values;
    for (auto& leaf : leaves) leaf = leaf.detach().clone().requires_grad_();
    leaves[0] = execution.x();
    const auto output = body(leaves);
    leaves.erase(leaves.begin());
    if (in_two) {
      auto rest = execution.run_first(output);
      EXPECT_TRUE(execution.gradient().defined());
      for (const auto& leaf : leaves) EXPECT_FALSE(leaf.grad().defined());
      EXPECT_TRUE(static_cast<bool>(rest));
      rest.run();
      EXPECT_FALSE(static_cast<bool>(rest));
    } else {
      backward(output.sum());
    }
    auto all = gradients_of(leaves);
    all.push_back(execution.gradient());
    return all;
  };
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

class ExecutorParts : public WithFibers {};

TEST_F(ExecutorParts, GradientsOfWeightsComeInTheSecond) {
  const auto v = leaves(3);
  {
    SCOPED_TRACE("linear");
    expect_same_in_two_parts(
        [](const Tensors& t) { return at::linear(t[0], t[1], t[2].select(0, 0)).tanh(); }, v);
  }
  {
    SCOPED_TRACE("linear of three dimensions");
    expect_same_in_two_parts(
        [](const Tensors& t) {
          return at::linear(t[0].view({2, 2, 4}), t[1], t[2].select(0, 0)).sin();
        },
        v);
  }
  {
    SCOPED_TRACE("no product");
    expect_same_in_two_parts([](const Tensors& t) { return (t[0] * t[1] + t[2]).exp(); }, v);
  }
  {
    SCOPED_TRACE("layer norm");
    expect_same_in_two_parts(
        [](const Tensors& t) {
          return at::layer_norm(t[0], {4}, t[1].select(0, 1), t[2].select(0, 2)).sin();
        },
        v);
  }
  {
    SCOPED_TRACE("one weight, many uses");
    expect_same_in_two_parts(
        [](const Tensors& t) {
          auto y = t[0];
          for (int i = 0; i < 5; ++i) y = (y.mm(t[1]) + t[1] * 0.1 + t[2]).tanh() * t[1];
          return y;
        },
        v);
  }
  SCOPED_TRACE("convolution");
  const auto image = at::randn({2, 3, 5, 5}), weight = at::randn({4, 3, 3, 3});
  expect_same_in_two_parts([](const Tensors& t) { return at::conv2d(t[0], t[1], t[2]).relu(); },
                           {image, weight, at::randn({4})});
}

TEST_F(ExecutorParts, AProductIsComputedForItsInputFirst) {
  const auto w = leaves(1)[0];
  const Execution execution(at::randn({4, 4}, at::kDouble));
  const auto y = execution.x().mm(w);
  auto& product = *y.grad_fn();
  ASSERT_TRUE(computes_gradients_apart(product)) << product.name();
  const auto edges = product.next_edges();
  auto rest = execution.run_first(y);
  EXPECT_EQ(product.next_edges(), edges);
  EXPECT_TRUE(execution.gradient().defined());
  EXPECT_FALSE(w.grad().defined());
  rest.run();
  EXPECT_EQ(product.next_edges(), edges);
  EXPECT_TRUE(w.grad().defined());
  EXPECT_THAT(thrown_by([&] { backward(y.sum()); }), HasSubstr("a second time"));  // freed
}

TEST_F(ExecutorParts, WhatOnlyLeavesNeedIsAllPutOff) {
  const auto w = leaves(2);
  std::vector<std::string> order;
  const auto first = w[0] * 2;
  first.register_hook([&](const at::Tensor& gradient) {
    order.emplace_back("hook");
    return gradient;
  });
  auto rest = run_input_part(edges_of({(first * w[1]).sum()}), {at::ones({}, at::kDouble)}, {});
  EXPECT_TRUE(order.empty());
  rest.run();
  EXPECT_EQ(order, std::vector<std::string>{"hook"});
  EXPECT_TRUE(same_bits(w[0].grad(), w[1].detach() * 2));
}

TEST_F(ExecutorParts, WithoutLeavesNothingIsLeft) {
  const Execution execution(at::ones({2}));
  EXPECT_FALSE(static_cast<bool>(execution.run_first(execution.x() * 2)));
  EXPECT_TRUE(execution.gradient().defined());
}

TEST_F(ExecutorParts, AGraphThatIsKeptIsRunAtOnce) {
  const auto w = leaves(1)[0];
  const Execution execution(at::ones({4, 4}, at::kDouble));
  EXPECT_FALSE(static_cast<bool>(execution.run_first(execution.x().mm(w), {.keep_graph = true})));
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(ExecutorParts, SoItIsInAnomalyMode) {
  const auto w = leaves(1)[0];
  const Execution execution(at::ones({4, 4}, at::kDouble));
  const torch::autograd::DetectAnomalyGuard anomaly;
  EXPECT_FALSE(static_cast<bool>(execution.run_first(execution.x().mm(w))));
  EXPECT_TRUE(w.grad().defined());
}

/// Products that LibTorch computes on this thread while it lives.
class CountProducts {
 public:
  CountProducts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&seen).scopes({at::RecordScope::FUNCTION}))) {
    count = 0;
  }
  ~CountProducts() { at::removeCallback(handle_); }
  CountProducts(const CountProducts&) = delete;
  CountProducts& operator=(const CountProducts&) = delete;

  static thread_local int count;

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& function) {
    count += std::string(function.name()) == "aten::mm" ? 1 : 0;
    return nullptr;
  }
  at::CallbackHandle handle_;
};
thread_local int CountProducts::count = 0;

TEST_F(ExecutorParts, NoProductIsComputedTwice) {
  const auto w = leaves(1)[0];
  const Execution execution(at::ones({4, 4}, at::kDouble));
  const auto y = execution.x().mm(w);
  const CountProducts products;
  auto rest = execution.run_first(y);
  EXPECT_EQ(CountProducts::count, 1);
  rest.run();
  EXPECT_EQ(CountProducts::count, 2);
}

/// A hook after a product wants to see all of its gradients, so it is computed once.
TEST_F(ExecutorParts, HooksAfterANodeSeeAllGradients) {
  struct Hook final : torch::autograd::FunctionPostHook {
    explicit Hook(int* seen) : defined(seen) {}
    variable_list operator()(const variable_list& outputs, const variable_list&) override {
      for (const auto& output : outputs) *defined += output.defined();
      return outputs;
    }
    int* defined;
  };
  const auto w = leaves(1)[0];
  const Execution execution(at::ones({4, 4}, at::kDouble));
  const auto y = execution.x().mm(w);
  int defined = 0;
  y.grad_fn()->add_post_hook(std::make_unique<Hook>(&defined));
  auto rest = execution.run_first(y);
  EXPECT_EQ(defined, 2);
  EXPECT_FALSE(w.grad().defined());
  rest.run();
  EXPECT_EQ(defined, 2);
  EXPECT_TRUE(w.grad().defined());
}

TEST_F(ExecutorParts, TheSecondThrowsWhatItsHooksThrow) {
  const auto w = leaves(1)[0];
  const auto doubled = w * 2;
  doubled.register_hook([](const at::Tensor&) { throw std::runtime_error("of the second part"); });
  const Execution execution(at::ones({4, 4}, at::kDouble));
  auto rest = execution.run_first(execution.x().mm(doubled));
  EXPECT_TRUE(execution.gradient().defined());
  EXPECT_EQ(thrown_by([&] { rest.run(); }), "of the second part");
}

TEST_F(ExecutorParts, CallsOfOtherRanksBelongToTheFirst) {
  const auto w = leaves(1)[0];
  const auto y = call_remotely({w}, [](const Tensors& in) { return Tensors{in[0] * 3}; })[0];
  auto rest = run_input_part(edges_of({(y * w).sum()}), {at::ones({}, at::kDouble)}, {});
  EXPECT_FALSE(w.grad().defined());
  rest.run();
  EXPECT_TRUE(close({w.grad()}, {w.detach() * 6}));
}

}  // namespace
}  // namespace smp::server::test
