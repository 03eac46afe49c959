// smp::grad against torch::autograd::grad of one process: through other ranks, in the midst of a
// forward, and with a graph of its own.
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "api/chain_model.h"

namespace smp {
namespace grad_test {

using at::Tensor;
using testing::HasSubstr;

// In one process smp::grad is LibTorch's.
TEST(Grad, AcrossRanksEqualsOneProcess) {
  expect_equal_gradients([](Chain&, auto model, Tensor x, const Backward& backward, int mb) {
    auto input = x.detach().clone().requires_grad_();
    const auto y = model(input);
    const auto gradient = smp::grad({y.square().sum()}, {input}, {}, /*retain_graph=*/mb != 1)[0];
    const auto attacked = x + gradient.sign() * 0.1;
    if (mb != 1) backward(y.sum(), {}, false);
    backward((model(attacked) * (mb + 1)).square().sum(), {}, false);
    EXPECT_EQ(input.grad().defined(), mb != 1);
  });
}

TEST(Grad, OfIntermediateTensorsAndWithGivenGradients) {
  expect_equal_gradients([](Chain& net, auto, Tensor x, const Backward& backward, int) {
    const auto hidden = net->a(x);
    const auto between = net->b(hidden);
    const auto y = net->c(between);
    const auto weights = torch::linspace(0, 1, y.numel(), torch::kDouble).reshape(y.sizes());
    const auto found = smp::grad({y, between.sum()}, {hidden, between}, {weights, Tensor()}, true);
    backward((y.sum() + (between * found[1] + hidden * found[0]).sum()), {}, false);
  });
}

TEST(Grad, ValuesEqualLibTorchs) {
  auto plain = make_chain();
  const auto plain_x = rows(4).requires_grad_();
  const auto expected = torch::autograd::grad({plain(plain_x).square().sum()}, {plain_x})[0];
  for (const int ranks : {1, 2, 3}) {
    on_ranks(
        ranks,
        [&] {
          auto net = make_chain();
          DistributedModel model(net);
          model.set_partition("", 0);
          model.set_partition("b", 1 % size());
          model.set_partition("c", 2 % size());
          auto train = smp::step([&](Tensor x) {
            x.requires_grad_();
            return smp::grad({model(x).square().sum()}, {x})[0];
          });
          const auto got = train(rows(4)).concat();
          expect_close(got, expected, "x");
          for (auto& parameter : model.local_parameters()) {
            EXPECT_FALSE(parameter.grad().defined());
          }
        },
        2);
  }
}

// A gradient penalty, and an inner step of MAML, of the part that lives with the body.
TEST(Grad, CreateGraphOfALocalPartEqualsOneProcess) {
  expect_equal_gradients([](Chain& net, auto model, Tensor x, const Backward& backward, int) {
    auto input = x.detach().clone().requires_grad_();
    const auto gradient = smp::grad({net->a(input).square().sum()}, {input}, {}, {}, true)[0];
    const auto penalty = (gradient.norm(2, 1) - 1).square().mean();
    backward(model(x).square().sum() + penalty, {}, false);

    const auto& weight = net->a->linear->weight;
    const auto inner = net->a(x).square().mean();
    const auto fast = weight - 0.1 * smp::grad({inner}, {weight}, {}, true, true)[0];
    backward(torch::matmul(x, fast.t()).sin().sum(), {}, false);
  });
}

TEST(Grad, InsideARemoteModuleEqualsOneProcess) {
  struct PenaltyImpl : torch::nn::Module {
    PenaltyImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
    Tensor forward(const Tensor& x) {
      auto input = x.detach().requires_grad_();
      const auto gradient = smp::grad({linear(input).tanh().sum()}, {input}, {}, {}, true)[0];
      return linear(x).tanh() + gradient.square();
    }
    nn::Linear linear;
  };
  using Penalty = Routed<PenaltyImpl>;
  const auto make = [] {
    torch::manual_seed(3);
    return make_module<PenaltyImpl>();
  };
  auto plain = make();
  for (const auto& x : rows(4).chunk(2)) (plain->forward(x).square().sum() / 2).backward();
  on_ranks(2, [&] {
    struct TopImpl : torch::nn::Module {
      explicit TopImpl(std::shared_ptr<Penalty> part)
          : inner(register_module("inner", std::move(part))) {}
      Tensor forward(const Tensor& x) { return inner->forward(x); }
      std::shared_ptr<Penalty> inner;
    };
    auto top = make_module<TopImpl>(make());
    DistributedModel model(top);
    model.set_partition("", 0);
    model.set_partition("inner", 1);
    auto train = smp::step([&](Tensor x) {
      if (!is_tracing()) model.backward(model(x).square().sum());
    });
    train(rows(4));
    if (rank() == 1) {
      expect_close(top->inner->linear->weight.grad(), plain->linear->weight.grad(), "weight");
      expect_close(top->inner->linear->bias.grad(), plain->linear->bias.grad(), "bias");
    }
  });
}

TEST(Grad, AParameterOfAnotherRankIsRefused) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      if (is_tracing()) return;
      smp::grad({own.model(x).sum()}, {own.far()->linear->weight});
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                HasSubstr("lives on another rank"));
  });
}

TEST(Grad, UnusedInputsAreAsInLibTorch) {
  on_ranks(1, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      auto unused = torch::ones({2}, torch::kDouble).requires_grad_();
      x.requires_grad_();
      const auto loss = own.model(x).sum();
      EXPECT_THAT(refusal<UsageError>([&] { smp::grad({loss}, {unused}, {}, true); }),
                  HasSubstr("input 0"));
      const auto found = smp::grad({loss}, {unused, x}, {}, {}, false, true);
      EXPECT_FALSE(found[0].defined());
      EXPECT_TRUE(found[1].defined());
    });
    train(rows(4));
  });
}

}  // namespace grad_test
}  // namespace smp
