// What the tracer says is live while a model runs: activations, gradients, and what callers have.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/types.h>

#include <string>
#include <utility>

#include "module/node_pointer.h"
#include "smp/module.h"
#include "smp/nn.h"
#include "trial/traced_run.h"

namespace smp::partitioning {
namespace {

using at::Tensor;
using testing::ElementsAre;

struct PairImpl : torch::nn::Module {
  nn::Linear first = register_module("first", nn::Linear(8, 8));
  nn::Linear second = register_module("second", nn::Linear(8, 4));
  Tensor forward(const Tensor& x) { return second(first(first(x)).relu()); }
};
SMP_MODULE(Pair);

TEST(TracerMemory, CountsWhatBackwardNeedsOnceForTheFirstThatKeepsIt) {
  Pair net;
  const auto x = torch::ones({5, 8});
  const auto seen = trace(*net, [&] { return std::vector{net(x).exp()}; });
  // Each linear keeps its input, which the block made for the last one, relu and exp their results.
  EXPECT_EQ(seen.calls[1].after.activation_bytes, 5 * 8 * 4);
  EXPECT_EQ(seen.calls[2].after.activation_bytes, 5 * 8 * 4);
  EXPECT_EQ(seen.calls[3].before.activation_bytes, 5 * 8 * 4);
  EXPECT_EQ(seen.calls[3].after.activation_bytes, 0);
  EXPECT_EQ(seen.calls[0].after.activation_bytes, 0);
  EXPECT_EQ(seen.body_after.activation_bytes, 5 * 4 * 4);
}

struct ActivatedImpl : torch::nn::Module {
  nn::Linear first = register_module("first", nn::Linear(8, 16));
  nn::Linear second = register_module("second", nn::Linear(16, 4));
  Tensor forward(const Tensor& x) { return second(torch::silu(first(x))); }
};
SMP_MODULE(Activated);

TEST(TracerMemory, CountsProductsAndWhatOfThemIsSaved) {
  Activated net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({5, 8})).sum()}; });
  const auto& first = seen.calls[1].after;
  EXPECT_EQ(first.product_bytes, 5 * 16 * 4);
  EXPECT_GT(first.product_seconds, 0);
  EXPECT_LE(first.product_seconds, first.seconds);
  EXPECT_EQ(seen.calls[2].before.saved_product_bytes, 5 * 16 * 4) << "silu saves it";
  EXPECT_EQ(seen.calls[2].before.product_bytes, 0);
  EXPECT_EQ(seen.calls[2].after.product_bytes, 5 * 4 * 4);
  EXPECT_EQ(seen.calls[2].after.saved_product_bytes, 0) << "its input is no product's";
}

/// Does not tell what it keeps.
struct SilentNode : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "SilentNode"; }
};

TEST(TracerMemory, NamesNodesThatDoNotTellWhatTheyKeep) {
  Pair net;
  const auto run = [&](bool silent) {
    return trace(*net, [&] {
      auto y = net(torch::ones({5, 8}));
      if (!silent) return std::vector{y.sum()};
      auto result = y.detach() * 2;
      const auto node = make_node<SilentNode>();
      node->set_next_edges(torch::autograd::collect_next_edges(y));
      torch::autograd::set_history(result, node);
      return std::vector{(result * result).sum()};
    });
  };
  EXPECT_THAT(run(true).silent_nodes, ElementsAre("SilentNode"));
  EXPECT_THAT(run(false).silent_nodes, testing::IsEmpty());
}

struct ResidualImpl : torch::nn::Module {
  nn::Linear first = register_module("first", nn::Linear(8, 8));
  nn::Linear second = register_module("second", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) { return x + second(first(x)); }
};
SMP_MODULE(Residual);

TEST(TracerMemory, CountsGradientsOnTheirWay) {
  Residual net;
  constexpr int kWeights = (8 * 8 + 8) * 4;
  constexpr int kTensor = 5 * 8 * 4;
  const auto seen = trace(*net, [&] {
    return std::vector{net(torch::ones({5, 8}).requires_grad_().exp()).sum()};
  });
  // A linear's own gradients: what came, what goes, its weights'.
  EXPECT_EQ(seen.calls[1].after.gradient_bytes, 2 * kTensor + kWeights);
  EXPECT_EQ(seen.calls[2].after.gradient_bytes, 2 * kTensor + kWeights);
  // The gradient that passes by is at first the one that came to the second linear.
  EXPECT_EQ(seen.calls[1].caller_gradient_bytes, kTensor);
}

struct SkipImpl : torch::nn::Module {
  nn::Linear first = register_module("first", nn::Linear(8, 8));
  nn::Linear second = register_module("second", nn::Linear(8, 8));
  nn::Linear third = register_module("third", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) {
    const auto y = first(x);
    return torch::cat({y, third(second(y))}, 1);
  }
};
SMP_MODULE(Skip);

TEST(TracerMemory, LetsTheGradientOfASkipConnectionWaitWithTheCaller) {
  Skip net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({5, 8})).sum()}; });
  constexpr int kWhole = 5 * 16 * 4;  // of what cat made: each part of it keeps it alive
  EXPECT_EQ(seen.calls[2].caller_gradient_bytes, kWhole);
  EXPECT_EQ(seen.calls[1].caller_gradient_bytes, 0) << "it came with the request";
}

struct ForkImpl : torch::nn::Module {
  nn::Linear left = register_module("left", nn::Linear(8, 8));
  nn::Linear right = register_module("right", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) {
    const auto y = x.exp();
    const auto from_left = left(y);
    const auto from_right = right(y);
    return from_left + from_right + right(x + 1);
  }
};
SMP_MODULE(Fork);

struct WrapImpl : torch::nn::Module {
  nn::Linear inner = register_module("inner", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) { return inner(x); }
};
SMP_MODULE(Wrap);

struct NestedImpl : torch::nn::Module {
  Wrap first = register_module("first", Wrap());
  nn::Linear second = register_module("second", nn::Linear(8, 8));
  Tensor forward(const Tensor& x) { return second(first(x)); }
};
SMP_MODULE(Nested);

TEST(TracerMemory, NotesWhoKeepsTheSameTensorAndWhatIsLiveInTheCaller) {
  Fork net;
  const auto seen = trace(*net, [&] {
    return std::vector{net(torch::ones({5, 8}).requires_grad_())};
  });
  ASSERT_EQ(seen.calls.size(), 4);
  ASSERT_EQ(seen.shared.size(), 1);  // exp, left and right keep y
  EXPECT_EQ(seen.shared[0].bytes, 5 * 8 * 4);
  EXPECT_THAT(seen.shared[0].keepers,
              ElementsAre(simulate::IntervalId{1, true}, simulate::IntervalId{1, false},
                          simulate::IntervalId{2, false}));
  EXPECT_EQ(seen.calls[1].caller_live_bytes, 0);
  EXPECT_EQ(seen.calls[3].caller_live_bytes, 3 * 5 * 8 * 4);  // what the others returned, and x + 1
}

TEST(TracerMemory, NotesWhichCallsGetAndReturnATensor) {
  Fork net;
  const auto seen = trace(*net, [&] { return std::vector{net(torch::ones({5, 8})).exp()}; });
  using simulate::TensorUse;
  constexpr auto kKept = simulate::TensorUseKind::kKept;
  constexpr auto kArgument = simulate::TensorUseKind::kArgument;
  constexpr int kTensor = 5 * 8 * 4;
  EXPECT_THAT(seen.uses, ElementsAre(TensorUse{0, kTensor, kKept, {1, false}},
                                     TensorUse{0, kTensor, kKept, {2, false}},
                                     TensorUse{0, kTensor, kArgument, {1, false}},
                                     TensorUse{0, kTensor, kArgument, {2, false}},
                                     TensorUse{1, kTensor, kKept, {3, false}},
                                     TensorUse{1, kTensor, kArgument, {3, false}}));
  Nested nested;
  const auto passed_on = trace(*nested, [&] { return std::vector{nested(torch::ones({5, 8}))}; });
  constexpr auto kResult = simulate::TensorUseKind::kResult;
  EXPECT_THAT(passed_on.uses, testing::IsSupersetOf({TensorUse{0, kTensor, kResult, {2, false}},
                                                     TensorUse{0, kTensor, kResult, {1, false}},
                                                     TensorUse{0, kTensor, kArgument, {3, false}}}))
      << "the first module returns what its own returned";
}

TEST(TracerMemory, SeesNoActivationsWhereGradModeIsOff) {
  Pair net;
  const auto seen = trace(*net, [&] {
    const torch::NoGradGuard no_grad;
    return std::vector{net(torch::ones({5, 8}))};
  });
  EXPECT_EQ(seen.calls.size(), 4);
  for (const auto& call : seen.calls) EXPECT_EQ(call.after.activation_bytes, 0);
}

}  // namespace
}  // namespace smp::partitioning
