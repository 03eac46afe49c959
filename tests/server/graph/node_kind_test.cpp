// What a node is, whether it was seen before or not.
#include "server/graph/node_kind.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include "server/backward/executor.h"

namespace smp::server {
namespace node_kind_test {

struct Doubled : torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x * 2;
  }
  static variable_list backward(torch::autograd::AutogradContext*, variable_list gradients) {
    return {gradients[0] * 2};
  }
};

class Away final : public AsyncNode {
 public:
  void start(variable_list&&, const BackwardOptions&, Completion) override {}
};

class Together final : public module::SuspendingNode {
 public:
  variable_list run(variable_list&& gradients) override { return std::move(gradients); }
};

NodeKind kind_of(const at::Tensor& output) {
  return server::kind_of(*torch::autograd::impl::gradient_edge(output).function);
}

TEST(NodeKind, IsThatOfItsType) {
  const auto x = at::randn({2, 3}).requires_grad_();
  torch::nn::Linear linear(3, 3);
  std::vector<at::Tensor> arguments{x.detach()};
  const auto boundary = make_boundary(arguments, TensorFlags{true});
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(kind_of(x), NodeKind::kLeaf);
    EXPECT_EQ(kind_of(linear(x)), NodeKind::kGenerated);
    EXPECT_EQ(kind_of(linear->weight.t()), NodeKind::kGenerated) << "a view";
    EXPECT_EQ(kind_of(arguments[0]), NodeKind::kBoundary);
    EXPECT_EQ(server::kind_of(Away()), NodeKind::kAsync);
    EXPECT_EQ(server::kind_of(Together()), NodeKind::kSuspending);
    EXPECT_EQ(kind_of(Doubled::apply(x)), NodeKind::kOther) << "time " << time;
  }
}

TEST(NodeKind, TwoOfThemWait) {
  for (const auto kind :
       {NodeKind::kOther, NodeKind::kLeaf, NodeKind::kGenerated, NodeKind::kBoundary}) {
    EXPECT_FALSE(waits_for_others(kind));
  }
  EXPECT_TRUE(waits_for_others(NodeKind::kAsync));
  EXPECT_TRUE(waits_for_others(NodeKind::kSuspending));
}

}  // namespace node_kind_test
}  // namespace smp::server
