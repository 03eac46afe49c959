// Second derivatives through modules of other ranks against plain LibTorch in one process.
#include "api/second_derivatives.h"
#include "api/grad_grad_check.h"
#include "smp/recompute/activation_checkpointing.h"

namespace smp {
namespace second_derivatives_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

TEST(SecondDerivatives, OfAGradientPenalty) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto between = leaf(x * 0.7 + 0.1);
    const auto gradient = differentiate({net(between).sum()}, {between})[0];
    backward(net(x).mean() + slope_penalty(gradient));
  });
}

// The gradients that leave have a history: it leads to the outputs themselves.
TEST(SecondDerivatives, WhereTheGradientDependsOnTheOutputs) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto hidden = net->a(input);
    const auto y = net->c(net->b(hidden));
    const auto found = differentiate({y.pow(3).sum()}, {input, hidden});
    backward(y.square().mean() + slope_penalty(found[0]) + (found[1] * hidden).sum());
  });
}

TEST(SecondDerivatives, OfTwoPassesOverOneForward) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net(input);
    const auto first = differentiate({y.select(1, 0).sum()}, {input})[0];
    const auto second = differentiate({y.select(1, 1).sum()}, {input})[0];
    backward((first * second).sum() + y.sum());
  });
}

TEST(SecondDerivatives, OfReusedModules) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto hidden = net->b(net->b(net->a(input)) * 0.5) + net->b(net->a(x));
    const auto gradient = differentiate({net->c(hidden).sum()}, {input})[0];
    backward(gradient.pow(3).sum());
  });
}

// jvp by two vjps: what the gradients given have a history for is wanted, not the arguments.
TEST(SecondDerivatives, WithRespectToTheGradientsThatWereGiven) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net(input);
    const auto given = torch::ones_like(y).requires_grad_();
    const auto vjp = differentiate({y}, {input}, {given})[0];
    const auto jvp = differentiate({vjp}, {given}, {(x * 2).cos()})[0];
    backward(jvp.square().sum());
  });
}

// Derivatives of derivatives of derivatives.
TEST(SecondDerivatives, OfHessianVectorProducts) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto gradient = differentiate({net(input).square().sum()}, {input})[0];
    const auto product = differentiate({(gradient * x.sin()).sum()}, {input})[0];
    const auto third = differentiate({product.square().sum()}, {input})[0];
    backward(product.sum() + third.sin().sum());
  });
}

/// Runs `check` in the body of a step on several ranks, with modules at `places`.
template <class Net>
void check_on_ranks(const std::function<Net()>& make, const std::map<std::string, int>& places,
                    int ranks, const char* schedule,
                    const std::function<void(Net&, const Tensor&)>& check) {
  SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(ranks) + " ranks");
  Config config;
  config.pipeline_parallel_degree = ranks;
  config.pipeline = schedule;
  config.plan_cache = "off";
  run_local(ranks,
            [&] {
              auto net = make();
              DistributedModel<Net> model(net);
              model.set_partition("", 0);
              for (const auto& [name, stage] : places) model.set_partition(name, stage);
              auto train = smp::step([&](Tensor x) {
                if (!is_tracing()) check(net, x);
              });
              train(rows(2));
            },
            config, {.seed = 5});
}

// Values: derivatives of gradients are central differences of them; by a weight of the rank whose
// code asks, too.
TEST(SecondDerivatives, EqualFiniteDifferences) {
  for (const char* schedule : {"interleaved", "zero_bubble"}) {
    check_on_ranks<Chain>([] { return make_chain(); }, {{"b", 1}, {"c", 2}}, 3, schedule,
                          [](Chain& net, const Tensor& x) {
                            GradGradCheck::run(
                                [&](const std::vector<Tensor>& in) {
                                  const auto hidden = at::linear(in[0], in[1]).tanh();
                                  return net->c(net->b(net->b(hidden) + hidden)) *
                                         in[0].narrow(1, 0, 2);
                                },
                                {x, net->a->linear->weight});
                          });
  }
}

TEST(SecondDerivatives, AfterAFirstBackward) {
  expect_chain_as_in_one_process([](Chain& net, const Tensor& x, const LossBackward& backward) {
    backward(net(x).square().sum());
    const auto input = leaf(x);
    const auto gradient = differentiate({net(input).sum()}, {input})[0];
    backward(slope_penalty(gradient));
    backward(net(x + gradient.detach()).sum());
  });
}

// ---- kinds of modules --------------------------------------------------------------------------

/// Several arguments, one of them unused, several results; gradients that are one tensor, or given
/// ones.
struct ManyImpl : torch::nn::Module {
  ManyImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& a, const Tensor& b, const Tensor& c,
                                             const Tensor& d) {
    const auto inner = (b + 2 * a).tanh();
    return {linear(inner) + d, a + b, inner.detach() * c.sum()};
  }
  nn::Linear linear;
};
SMP_MODULE(Many);

/// y = x^3, with its derivative as a formula.
struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};

struct CubedImpl : torch::nn::Module {
  CubedImpl() : linear(register_module("linear", nn::Linear(3, 3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) { return Cube::apply(linear(x)); }
  nn::Linear linear;
};
SMP_MODULE(Cubed);

/// Calls one of another rank, which calls back, and differentiates on the way.
struct CallerImpl : torch::nn::Module {
  CallerImpl(Cubed back) : back(std::move(back)), cubed(register_module("cubed", Cubed())) {
    to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) { return cubed(x * x) + back(cubed(x).sin()); }
  Cubed back;  // registered by the model
  Cubed cubed;
};
SMP_MODULE(Caller);

struct NestImpl : torch::nn::Module {
  NestImpl()
      : shared(register_module("shared", Cubed())),
        caller(register_module("caller", Caller(shared))),
        top(register_module("top", Layer(3, 3))),
        many(register_module("many", Many())) {}
  Tensor forward(const Tensor& x) { return top(caller(shared(x).tanh()) + x); }
  Cubed shared;
  Caller caller;
  Layer top;
  Many many;
};
SMP_MODULE(Nest);

Nest make_nest() {
  torch::manual_seed(11);
  return {};
}

template <class Body>
void expect_nest_as_in_one_process(const Body& body) {
  const SecondDerivatives layouts[] = {
      {{{"caller", 1}, {"many", 1}}, 2},
      // 0 -> 1 -> 2 -> 1
      {{{"caller", 1}, {"caller.cubed", 2}, {"shared", 1}, {"many", 2}}, 3},
      {{{"caller", 1}, {"caller.cubed", 2}, {"shared", 3}, {"top", 1}, {"many", 3}}, 4}};
  for (const char* schedule : {"interleaved", "zero_bubble"}) {
    for (auto how : layouts) {
      SCOPED_TRACE(std::string(schedule) + ", " + std::to_string(how.ranks) + " ranks");
      how.config.pipeline = schedule;
      expect_as_in_one_process<Nest>([] { return make_nest(); }, how, body);
    }
  }
}

TEST(SecondDerivatives, ThroughCallsOfRemoteModules) {
  expect_nest_as_in_one_process([](Nest& net, const Tensor& x, const LossBackward& backward) {
    const auto input = leaf(x);
    const auto y = net(input);
    const auto gradient = differentiate({y.square().sum()}, {input})[0];
    const auto other = differentiate({y.sin().sum()}, {input})[0];
    backward(y.sum() + slope_penalty(gradient) + (gradient * other).sum());
  });
}

TEST(SecondDerivatives, OfSeveralArgumentsAndResults) {
  expect_nest_as_in_one_process([](Nest& net, const Tensor& x, const LossBackward& backward) {
    const auto a = leaf(x), b = leaf(x.sin()), c = leaf(x.cos());
    const auto squared = a * a;
    const auto [y, sum, unused] = net->many(squared, b, c, squared);
    const auto found = differentiate({y.pow(2).sum(), sum.exp().sum()}, {a, b, c});
    const auto more = found[2].defined() ? found[2].sum() : torch::zeros({}, x.options());
    backward((found[0] * found[1]).sum() + unused.sum() + more);
  });
}

TEST(SecondDerivatives, OfCustomFunctionsEqualFiniteDifferences) {
  check_on_ranks<Nest>([] { return make_nest(); },
                       {{"caller", 1}, {"caller.cubed", 2}, {"shared", 1}, {"many", 2}}, 3,
                       "interleaved",
                       [](Nest& net, const Tensor& x) {
                         GradGradCheck::run(
                             [&](const std::vector<Tensor>& in) {
                               const auto [y, sum, none] = net->many(in[0], in[1], in[1], in[0]);
                               return net->shared(y.tanh()) + net->caller(sum * 0.3);
                             },
                             {x, x.cos()});
                       });
}

/// A penalty that a module of another rank computes in its forward, of a call of yet another rank.
struct PenaltyImpl : torch::nn::Module {
  PenaltyImpl() : inner(register_module("inner", Cubed())) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) {
    const auto y = inner(x * x);
    return y + differentiate({y.square().sum()}, {x})[0].sin();
  }
  Cubed inner;
};
SMP_MODULE(Penalty);

struct WithPenaltyImpl : torch::nn::Module {
  WithPenaltyImpl() : penalty(register_module("penalty", Penalty())) {}
  Penalty penalty;
};
SMP_MODULE(WithPenalty);

TEST(SecondDerivatives, InsideARemoteModule) {
  const auto make = [] {
    torch::manual_seed(4);
    return WithPenalty();
  };
  for (const int ranks : {2, 3}) {
    SecondDerivatives how{{{"penalty", 1}, {"penalty.inner", 2}}, ranks};
    expect_as_in_one_process<WithPenalty>(
        make, how, [](WithPenalty& net, const Tensor& x, const LossBackward& backward) {
          const auto input = leaf(x);
          const auto y = net->penalty(input * 2);
          const auto gradient = differentiate({y.sum()}, {input})[0];
          backward(y.square().sum() + gradient.square().sum());
        });
  }
}

// ---- modes -------------------------------------------------------------------------------------

void penalise(Chain& net, const Tensor& x, const LossBackward& backward) {
  const auto input = leaf(x);
  const auto y = net(input);
  backward(y.mean() + slope_penalty(differentiate({y.square().sum()}, {input})[0]));
}

TEST(SecondDerivatives, InStepsThatAreReplayed) {
  for (const bool fast : {false, true}) {
    SecondDerivatives how{{{"b", 1}, {"c", 2}}, 3, 3, 9};
    how.config.static_mode = true;
    how.config.fast_mode = fast;
    expect_as_in_one_process<Chain>([] { return make_chain(); }, how, penalise);
  }
}

// Tensors that are lent instead of sent, and written afterwards.
TEST(SecondDerivatives, OfLargeTensorsThatAreWrittenInPlace) {
  SecondDerivatives how{{{"b", 1}, {"c", 2}}, 3};
  how.rows = 3000;
  expect_as_in_one_process<Chain>([] { return make_chain(); }, how,
                                  [](Chain& net, const Tensor& x, const LossBackward& backward) {
                                    const auto input = leaf(x);
                                    const auto y = net(input);
                                    auto given = (y.detach() * 2).requires_grad_() * 1;
                                    auto gradient = differentiate({y}, {input}, {given})[0];
                                    gradient.mul_(x.sin() + 2);
                                    backward((gradient.square().sum() + y.sum()) / x.numel());
                                  });
}

TEST(SecondDerivatives, InReplicas) {
  SecondDerivatives how{{{"b", 1}, {"c", 1}}, 2, 2, 2, 2};
  expect_as_in_one_process<Chain>([] { return make_chain(); }, how, penalise);
}

// What a first forward saved is computed again, and has its history all the same.
TEST(SecondDerivatives, OfModulesThatAreRecomputed) {
  const auto make = [] {
    auto net = make_chain();
    if (is_initialized()) set_activation_checkpointing(net->b);
    if (is_initialized()) set_activation_checkpointing(net->a);
    return net;
  };
  for (const int ranks : {1, 2}) {
    SecondDerivatives how{{{"b", 1}, {"c", 1}}, ranks};
    expect_as_in_one_process<Chain>(make, how, penalise);
  }
  const auto make_caller = [] {
    auto net = make_nest();
    if (is_initialized()) set_activation_checkpointing(net->caller);
    return net;
  };
  SecondDerivatives how{{{"caller", 1}, {"caller.cubed", 2}, {"shared", 1}}, 3};
  expect_as_in_one_process<Nest>(
      make_caller, how, [](Nest& net, const Tensor& x, const LossBackward& backward) {
        const auto input = leaf(x);
        backward(differentiate({net(input).sum()}, {input})[0].square().sum());
      });
}

/// The gradients go straight to the module that makes the loss of them, which is only promised.
struct CriticImpl : torch::nn::Module {
  CriticImpl() : layer(register_module("layer", Layer(3, 3))) {}
  Tensor forward(const Tensor& gradient) { return layer(gradient).square().sum(); }
  Layer layer;
};
SMP_MODULE(Critic);

struct CriticisedImpl : torch::nn::Module {
  CriticisedImpl()
      : first(register_module("first", Cubed())), critic(register_module("critic", Critic())) {}
  Cubed first;
  Critic critic;
};
SMP_MODULE(Criticised);

TEST(SecondDerivatives, OfALossThatIsPromised) {
  const auto make = [] {
    torch::manual_seed(6);
    return Criticised();
  };
  for (const bool replayed : {false, true}) {
    SecondDerivatives how{{{"first", 1}, {"critic", 2}}, 3, 2, 9};
    how.config.static_mode = replayed;
    expect_as_in_one_process<Criticised>(
        make, how, [](Criticised& net, const Tensor& x, const LossBackward& backward) {
          const auto input = leaf(x);
          const auto gradient = differentiate({net->first(input).sum()}, {input})[0];
          backward(net->critic(gradient));
        });
  }
}

// ---- what is refused, and what is freed --------------------------------------------------------

TEST(SecondDerivatives, AreFreedByTheFirstPassOverThem) {
  on_ranks(2, [] {
    FarModel own;
    auto train = smp::step([&](Tensor x) {
      if (is_tracing()) return;
      const auto input = leaf(x);
      const auto gradient = smp::grad({own.model(input).sum()}, {input}, {}, {}, true)[0];
      const auto loss = gradient.square().sum();
      smp::grad({loss}, {input}, {}, true);
      smp::grad({loss}, {input});
      smp::grad({loss}, {input});
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                AllOf(HasSubstr("second time"), HasSubstr("retain_graph")));
  });
}

TEST(SecondDerivatives, FreeTheCallsWhoseTheyAre) {
  const auto body = [](Chain& net, const Tensor& x, auto&& differentiate_once) {
    const auto input = leaf(x);
    const auto y = net(input);
    const auto gradient = differentiate({y.sum()}, {input})[0];
    differentiate_once(gradient.square().sum(), input);
    differentiate_once(y.sum(), input);
  };
  auto plain = make_chain();
  const auto by_libtorch = [](const Tensor& loss, const Tensor& input) {
    torch::autograd::grad({loss}, {input});
  };
  EXPECT_THROW(body(plain, rows(4), by_libtorch), c10::Error);
  on_ranks(2, [&] {
    auto net = make_chain();
    DistributedModel<Chain> model(net);
    model.set_partition("", 0);
    model.set_partition("b", 1);
    auto train = smp::step([&](Tensor x) {
      if (is_tracing()) return;
      body(net, x, [](const Tensor& loss, const Tensor& input) { smp::grad({loss}, {input}); });
    });
    EXPECT_THAT(refused_step<UsageError>(0, [&] { train(rows(4)); }),
                AllOf(HasSubstr("second time"), HasSubstr("retain_graph")));
  });
}

}  // namespace second_derivatives_test
}  // namespace smp
