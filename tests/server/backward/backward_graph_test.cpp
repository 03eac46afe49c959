// What a backward pass finds in a graph before it begins.
#include "server/backward/backward_graph.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <set>

namespace smp::server {
namespace backward_graph_test {

bool runs_user_code(const at::Tensor& output) {
  return BackwardGraph({torch::autograd::impl::gradient_edge(output)}, {}, true).runs_user_code;
}

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

class BackwardGraphTest : public ::testing::Test {
 protected:
  at::Tensor x_ = at::randn({2, 3}).requires_grad_();
  torch::nn::Linear linear_{3, 3};
};

TEST_F(BackwardGraphTest, NodesOfLibTorchRunNoCodeOfTheUser) {
  EXPECT_FALSE(runs_user_code(linear_(x_).tanh().sum()));
  EXPECT_FALSE(runs_user_code(linear_(x_).view({6}).narrow(0, 0, 4).sum())) << "views";
  EXPECT_FALSE(runs_user_code(at::dropout(linear_(x_), 0.5, true))) << "its mask is drawn forward";
}

TEST_F(BackwardGraphTest, FunctionsAndHooksDo) {
  EXPECT_TRUE(runs_user_code(linear_(Doubled::apply(x_))));
  const auto y = linear_(x_);
  y.register_hook([](const at::Tensor&) {});
  EXPECT_TRUE(runs_user_code(y.sum()));
  linear_->weight.register_hook([](const at::Tensor&) {});
  EXPECT_TRUE(runs_user_code(linear_(x_))) << "of a leaf";
}

/// From a few nodes to many, each of which leads to the one before twice.
TEST_F(BackwardGraphTest, EveryEdgeLeadsToItsNode) {
  auto y = x_;
  for (std::size_t operators = 1; operators <= 40; ++operators) {
    y = y * y;
    const auto end = torch::autograd::impl::gradient_edge(y);
    const BackwardGraph graph({end}, {torch::autograd::impl::gradient_edge(x_), end}, true);
    ASSERT_EQ(graph.nodes.size(), operators + 1);
    std::set<const torch::autograd::Node*> nodes;
    for (const auto& entry : graph.nodes) {
      nodes.insert(entry.node);
      for (std::uint32_t i = 0; i < entry.node->num_outputs(); ++i) {
        const auto target = graph.targets[entry.first_target + i];
        EXPECT_EQ(graph.nodes[target].node, entry.node->next_edge(i).function.get());
      }
      EXPECT_EQ(entry.dependencies, entry.node == y.grad_fn().get() ? 1u : 2u);
    }
    EXPECT_EQ(nodes.size(), graph.nodes.size());
    EXPECT_EQ(graph.nodes.back().first_capture, 0) << "the leaf is found last";
    EXPECT_EQ(graph.nodes.front().first_capture, 1);
  }
}

}  // namespace backward_graph_test
}  // namespace smp::server
