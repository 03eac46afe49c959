// Backward passes that are not model.backward() over the whole model: through parts of it, through
// boundaries of other calls, by LibTorch's own engine; and leaves that no model knows.
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "api/chain_model.h"

namespace smp {
namespace foreign_backward_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

// ---- parts of a model --------------------------------------------------------------------------

// What refuses `body(net, model, x)` on 1 and on 2 ranks; the next step must work.
template <class Body>
void expect_refused(const Body& body, const testing::Matcher<std::string>& text) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [&] {
      auto net = make_chain();
      DistributedModel<Chain> model(net);
      model.set_partition("", 0);
      model.set_partition("b", size() - 1);
      auto wrong = smp::step([&](Tensor x) {
        if (!is_tracing()) body(net, model, x);
      });
      EXPECT_THAT(refused_step<UsageError>(0, [&] { wrong(rows(4)); }), text) << ranks << " ranks";
      auto right = smp::step([&](Tensor x) { model.backward(model(x).sum()); });
      right(rows(4));
    });
  }
}

TEST(ForeignBackward, OfAPartCalledDirectlySaysToCallTheModels) {
  const auto text = HasSubstr("Call model.backward(loss) instead of loss.backward()");
  expect_refused([](Chain& net, auto&, Tensor x) { net->a(x).sum().backward(); }, text);
  expect_refused([](Chain&, auto& model, Tensor x) { model->a(x).sum().backward(); }, text);
  expect_refused([](Chain& net, auto&, Tensor x) { net->b(net->a(x)).sum().backward(); }, text);
  expect_refused([](Chain& net, auto&, Tensor) { net->a->linear->weight.norm().backward(); },
                 AllOf(text, HasSubstr("parameter a.linear.weight")));
  expect_refused(
      [](Chain& net, auto&, Tensor x) {
        torch::autograd::backward({net->a(x)}, {torch::ones({2, 4}, torch::kDouble)});
      },
      text);
}

TEST(ForeignBackward, ModelsBackwardOfPartsEqualsOneProcess) {
  expect_equal_gradients([](Chain& net, auto, Tensor x, const Backward& backward, int) {
    backward(net->b(net->a(x)).square().sum(), {}, false);
    backward(net->a(x).sum() + net->c->forward(net->a(x) * 2).sum(), {}, false);
  });
}

TEST(ForeignBackward, LibTorchsGradOfALocalPartIsWhatItIs) {
  expect_equal_gradients([](Chain& net, auto model, Tensor x, const Backward& backward, int) {
    x = x.clone().requires_grad_();
    const auto gradient = torch::autograd::grad({net->a(x).square().sum()}, {x})[0];
    backward(model(x + gradient).sum(), {}, false);
  });
}

// ---- boundaries --------------------------------------------------------------------------------

// What a module keeps outside of itself.
struct Memory {
  Tensor kept;
};

struct InnerImpl : torch::nn::Module {
  InnerImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    switch (mode) {
      case kKeeps: {
        auto y = linear(x);
        if (memory->kept.defined()) y = y + memory->kept;
        memory->kept = y;
        return y.tanh();
      }
      case kBackward:
        linear(x).square().sum().backward();
        break;
      case kDetachedBackward:
        linear(x.detach()).square().sum().backward();
        break;
      case kGrad:
        if (x.requires_grad()) {
          return linear(x) * torch::autograd::grad({linear(x).square().sum()}, {x})[0];
        }
        break;
    }
    return linear(x).tanh();
  }
  enum Mode { kKeeps, kBackward, kDetachedBackward, kGrad } mode = kKeeps;
  Memory* memory = nullptr;
  nn::Linear linear;
};
SMP_MODULE(Inner);

struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : first(register_module("first", nn::Linear(3, 3))),
        inner(register_module("inner", Inner())) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    auto y = inner(first(x));
    for (int call = 1; call < calls; ++call) y = inner(y);
    return y;
  }
  int calls = 1;
  nn::Linear first;
  Inner inner;
};
SMP_MODULE(Outer);

Outer make_outer(InnerImpl::Mode mode, Memory& memory) {
  torch::manual_seed(4);
  Outer net;
  net->inner->mode = mode;
  net->inner->memory = &memory;
  return net;
}

struct OuterModel {
  explicit OuterModel(InnerImpl::Mode mode) : net(make_outer(mode, memory)), model(net) {
    model.set_partition("", 0);
    model.set_partition("inner", size() - 1);
  }
  void step() {
    auto train = smp::step([&](Tensor x) {
      if (is_tracing()) return;
      model.backward(model(x).sum());
    });
    train(rows(4));
  }
  Memory memory;
  Outer net;
  DistributedModel<Outer> model;
};

TEST(ForeignBackward, AGraphThatAModuleKeepsFromCallToCallIsNamed) {
  on_ranks(2, [] {
    OuterModel own(InnerImpl::kKeeps);
    own.net->calls = 2;
    std::string text;
    try {
      own.step();
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1, module inner (backward)"),
                            HasSubstr("the call of module 'inner' for microbatch"),
                            HasSubstr("kept from one call"), HasSubstr("detach() it")));
  });
}

TEST(ForeignBackward, ByLibTorchInsideARemoteModuleIsNamedWhereItReachesItsArguments) {
  on_ranks(2, [] {
    OuterModel own(InnerImpl::kBackward);
    EXPECT_THAT(refused_step<RemoteError>(0, [&] { own.step(); }),
                AllOf(HasSubstr("rank 1, module inner (forward)"),
                      HasSubstr("loss.backward() or torch::autograd::grad() inside a module"),
                      HasSubstr("detach()")));
    own.net->inner->mode = InnerImpl::kDetachedBackward;
    own.step();
  });
}

TEST(ForeignBackward, InsideARemoteModuleWithoutReachingItsArgumentsEqualsOneProcess) {
  for (const auto mode : {InnerImpl::kDetachedBackward, InnerImpl::kGrad}) {
    Memory memory;
    auto plain = make_outer(mode, memory);
    for (const auto& slice : rows(4).chunk(2)) (plain(slice).sum() / 2).backward();
    const auto expected = plain->named_parameters();
    for (const int ranks : {1, 2}) {
      on_ranks(ranks, [&] {
        OuterModel own(mode);
        own.step();
        for (auto& [name, parameter] : own.model.local_named_parameters()) {
          expect_close(parameter.grad(), expected[name].grad(), name);
        }
      });
    }
  }
}

TEST(ForeignBackward, AnArgumentOfAnEarlierStepIsNamed) {
  for (const int ranks : {1, 2}) {
    on_ranks(
        ranks,
        [] {
          FarModel own;
          Tensor kept;
          auto train = smp::step([&](Tensor x) {
            if (is_tracing()) return;
            auto y = own.model(kept.defined() ? x + kept : x).sum();
            own.model.backward(y);
            if (!kept.defined()) kept = x;
          });
          train(rows(2).requires_grad_() * 1);
          EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(2).requires_grad_() * 1); }),
                      AllOf(HasSubstr("a step that is over"), HasSubstr("detach()")));
        },
        1);
  }
}

// ---- leaves of no model ------------------------------------------------------------------------

// Projected gradient descent: each round reads the gradient of a leaf that it made itself.
TEST(ForeignBackward, ALeafMadeInTheBodyHasItsGradientAtOnce) {
  expect_equal_gradients([](Chain&, auto model, Tensor x, const Backward& backward, int) {
    auto attacked = x.detach().clone().requires_grad_();
    for (int round = 0; round < 3; ++round) {
      backward(model(attacked).square().sum(), {}, false);
      ASSERT_TRUE(attacked.grad().defined());
      attacked = (attacked + attacked.grad().sign() * 0.1).detach().requires_grad_();
    }
    backward(model(attacked).sum(), {}, false);
  });
}

TEST(ForeignBackward, ASharedLeafOfNoModelSumsAllMicrobatches) {
  const auto make = [] { return torch::full({3}, 1.5, torch::kDouble).requires_grad_(); };
  const auto loss_of = [](const Tensor& y, const Tensor& leaf) {
    return (y.sum(1, true) * leaf).square().sum();
  };
  auto net = FarModel::make();
  const auto plain = make();
  for (const auto& slice : rows(6).chunk(3)) {
    for (int pass = 1; pass <= 2; ++pass) {
      (loss_of(net(slice * plain), plain) * pass / 3).backward();
    }
  }
  for (const int ranks : {1, 2, 3}) {
    on_ranks(
        ranks,
        [&] {
          FarModel own;
          const auto leaf = make();
          auto train = smp::step([&](Tensor x) {
            if (is_tracing()) return;
            for (int pass = 1; pass <= 2; ++pass) {
              own.model.backward(loss_of(own.model(x * leaf), leaf) * pass);
            }
          });
          train(rows(6));
          if (rank() == 0) expect_close(leaf.grad(), plain.grad(), "leaf");
        },
        3);
  }
}

// ---- against plain LibTorch --------------------------------------------------------------------

TEST(ForeignBackward, RetainedGraphsAndSeveralLossesEqualOneProcess) {
  expect_equal_gradients([](Chain& net, auto model, Tensor x, const Backward& backward, int) {
    const auto hidden = net->a(x);
    const auto y = net->c(net->b(hidden));
    backward(y.sum(), {}, true);
    backward(y.square().sum(), {}, true);
    backward(hidden.sum(), {}, true);
    backward(y, torch::linspace(0, 1, y.numel(), torch::kDouble).reshape(y.sizes()), false);
    backward(model(x).select(1, 0).sum(), {}, false);
  });
}

TEST(ForeignBackward, DetachedBranchesEqualOneProcess) {
  expect_equal_gradients([](Chain& net, auto model, Tensor x, const Backward& backward, int mb) {
    const auto hidden = net->a(x);
    const auto y = net->b(mb == 1 ? hidden.detach() : hidden);
    backward((y * model(x).sum(1, true).detach()).sum(), {}, false);
  });
}

TEST(ForeignBackward, FrozenLayersEqualOneProcess) {
  expect_equal_gradients([](Chain&, auto model, Tensor x, const Backward& backward,
                            int) { backward(model(x).square().sum(), {}, false); },
                         [](Chain& net) {
                           for (auto& parameter : net->b->parameters())
                             parameter.set_requires_grad(false);
                           net->a->linear->bias.set_requires_grad(false);
                         });
}

TEST(ForeignBackward, TiedWeightsEqualOneProcess) {
  expect_equal_gradients([](Chain& net, auto, Tensor x, const Backward& backward,
                            int) { backward(net->b(net->b(net->a(x))).square().sum(), {}, false); },
                         [](Chain&) {});
}

TEST(ForeignBackward, HooksThatChangeGradientsEqualOneProcess) {
  expect_equal_gradients(
      [](Chain& net, auto, Tensor x, const Backward& backward, int mb) {
        auto hidden = net->a(x);
        hidden.register_hook([mb](const Tensor& gradient) { return gradient * (mb + 2); });
        auto y = net->b(hidden);
        y.register_hook([](const Tensor& gradient) { return gradient.clamp(-0.5, 0.5); });
        backward(net->c(y).square().sum(), {}, false);
      },
      [](Chain& net) {
        for (auto& parameter : net->parameters()) {
          parameter.register_hook([](const Tensor& gradient) { return gradient.square() + 1; });
        }
      });
}

TEST(ForeignBackward, ASecondPassOverAFreedGraphIsRefused) {
  for (const int ranks : {1, 2}) {
    on_ranks(ranks, [] {
      FarModel own;
      auto train = smp::step([&](Tensor x) {
        if (is_tracing()) return;
        const auto loss = own.model(x).square().sum();
        own.model.backward(loss);
        own.model.backward(loss);
      });
      std::string text;
      try {
        train(rows(4));
      } catch (const std::exception& error) {
        text = error.what();
      }
      EXPECT_THAT(text, HasSubstr("Trying to backward through the graph a second time"));
    });
  }
}

}  // namespace foreign_backward_test
}  // namespace smp
