// What a remote module returns of its arguments is what it is in one process: the caller's own
// tensor, a view of it, or two views of one tensor; in-place changes go as far
// (docs/design.md, Aliases).
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/types.h>

#include "api/state/small_program.h"

namespace smp {
namespace aliases_test {

using namespace small_programs;

using at::Tensor;
using testing::HasSubstr;

Tensors identity(ElsewhereImpl&, Tensors in) { return in; }

/// Something that no other number of the test looks like.
Tensor odd_sum(const Tensor& x) {
  return (x * torch::arange(1, x.numel() + 1, torch::kDouble).view(x.sizes())).pow(2).sum();
}

TEST(Aliases, AnOutputThatIsTheArgumentIsTheCallersOwnTensor) {
  expect_as_alone({identity, [](Tensor h, Elsewhere& elsewhere) {
                     const auto y = elsewhere->forward({h})[0];
                     EXPECT_TRUE(y.is_same(h));
                     y.mul_(2);
                     return odd_sum(h) + y.sum();
                   }});
}

TEST(Aliases, BesideOneThatIsNot) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors in) {
                     return Tensors{in[0], in[0] + self.weight};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     auto y = elsewhere->forward({h});
                     y[0].tanh_();
                     return odd_sum(h) + odd_sum(y[1]) + y[0].sum();
                   }});
}

TEST(Aliases, AViewOfTheArgumentIsAViewOfTheCallersTensor) {
  const std::vector<std::function<Tensor(const Tensor&)>> views{
      [](const Tensor& x) { return x.narrow(1, 1, 2); },
      [](const Tensor& x) { return x.t(); },
      [](const Tensor& x) { return x.view({-1}); },
      [](const Tensor& x) {
        return x.view({2, 2, 2}).select(1, 1);
      },
      [](const Tensor& x) { return x.select(0, 1); },
      [](const Tensor& x) { return x.unsqueeze(1); },
      [](const Tensor& x) { return x.diagonal(); },
      [](const Tensor& x) { return x.slice(1, 0, 4, 2); },
      [](const Tensor& x) { return x.narrow(0, 0, 1); }};
  for (std::size_t i = 0; i < views.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& view = views[i];
    expect_as_alone({[view](ElsewhereImpl&, Tensors in) { return Tensors{view(in[0])}; },
                     [](Tensor h, Elsewhere& elsewhere) {
                       const auto before = h * 1;
                       const auto y = elsewhere->forward({before})[0];
                       y.mul_(3);
                       return odd_sum(before) + odd_sum(y);
                     }});
  }
}

TEST(Aliases, ArgumentsMayBeStridedThemselves) {
  const std::vector<std::function<Tensor(const Tensor&)>> arguments{
      [](const Tensor& x) { return x.t(); },
      [](const Tensor& x) { return x.narrow(1, 1, 3); },
      [](const Tensor& x) { return x.slice(1, 0, 4, 2); },
      [](const Tensor& x) { return x.narrow(0, 1, 1); },
      [](const Tensor& x) {
        return x.view({2, 2, 2}).permute({2, 0, 1});
      },
      [](const Tensor& x) {
        return x.view({2, 2, 2}).select(2, 1);
      }};
  const std::vector<std::function<Tensor(const Tensor&)>> results{
      [](const Tensor& x) { return x; },
      [](const Tensor& x) { return x.contiguous(); },
      [](const Tensor& x) { return x.reshape({-1}); },
      [](const Tensor& x) { return x.transpose(0, 1); },
      [](const Tensor& x) { return x.select(-1, 0); },
      [](const Tensor& x) { return x.clone(); }};
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    for (std::size_t r = 0; r < results.size(); ++r) {
      SCOPED_TRACE(testing::Message() << "argument " << a << ", result " << r);
      const auto &argument = arguments[a], &result = results[r];
      const Program program{[result](ElsewhereImpl&, Tensors in) { return Tensors{result(in[0])}; },
                            [argument](Tensor h, Elsewhere& elsewhere) {
                              const auto before = h * 1;
                              const auto y = elsewhere->forward({argument(before)})[0];
                              y.mul_(3);
                              return odd_sum(before) + odd_sum(y);
                            }};
      const auto reference = run_alone(program, 2);
      on_ranks(2, [&] { expect_same(run_on_this_rank(program), reference); });
    }
  }
}

/// Without the gaps of the caller's tensor the columns are adjacent to the next row's.
TEST(Aliases, WhatIsAViewOnlyWithoutGapsIsACopy) {
  expect_as_alone(
      {[](ElsewhereImpl&, Tensors in) { return Tensors{in[0].slice(1, 0, 3, 2).reshape({-1})}; },
       [](Tensor h, Elsewhere& elsewhere) {
         const auto wide = torch::cat({h, h * 2}, 1);
         const auto y = elsewhere->forward({wide.narrow(1, 0, 3)})[0];
         y.mul_(3);
         return odd_sum(wide) + odd_sum(y);
       }});
}

TEST(Aliases, OutputsThatAreOneTensorOrLieOnEachOther) {
  const std::vector<std::function<Tensors(const Tensor&)>> pairs{
      [](const Tensor& x) {
        return Tensors{x, x};
      },
      [](const Tensor& x) {
        return Tensors{x, x.view({-1})};
      },
      [](const Tensor& x) {
        return Tensors{x.t(), x};
      },
      [](const Tensor& x) {
        return Tensors{x.narrow(1, 0, 3), x.narrow(1, 1, 3)};
      },
      [](const Tensor& x) {
        return Tensors{x.t(), x.t()};
      }};
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& pair = pairs[i];
    expect_as_alone({[pair](ElsewhereImpl& self, Tensors in) { return pair(in[0] * self.weight); },
                     [](Tensor h, Elsewhere& elsewhere) {
                       auto y = elsewhere->forward({h});
                       y[0].mul_(3);
                       y[1].add_(1);
                       return odd_sum(y[0]) + odd_sum(y[1]);
                     }});
  }
}

/// The model itself: what it returns is not wrapped.
struct ReturnsTwiceImpl : torch::nn::Module {
  Tensors forward(const Tensor& x) {
    const auto y = inner(x);
    return {y, y, x};
  }
  nn::Linear inner = register_module("inner", nn::Linear(4, 4));
};
SMP_MODULE(ReturnsTwice);

/// The gradient of the weight if the body changes the first output in place; where it lives.
Tensor gradient_of_changed_outputs(const std::function<void(ReturnsTwice&)>& train) {
  torch::manual_seed(3);
  ReturnsTwice net;
  net->to(torch::kDouble);
  train(net);
  return net->inner->weight.grad();
}

TEST(Aliases, TheModelsOwnOutputsThatAreOneTensorOrTheArgument) {
  const auto x = torch::linspace(-1, 1, 8, torch::kDouble).view({2, 4});
  const auto loss_of = [](const Tensors& y, const Tensor& argument) {
    EXPECT_TRUE(y[1].is_same(y[0]));
    EXPECT_TRUE(y[2].is_same(argument));
    y[0].mul_(3);
    return odd_sum(y[1]) + y[2].sum();
  };
  const auto reference = gradient_of_changed_outputs(
      [&](ReturnsTwice& net) { loss_of(net->forward(x), x).backward(); });
  for (const int stage : {0, 1}) {
    run_local(2, [&] {
      const auto gradient = gradient_of_changed_outputs([&](ReturnsTwice& net) {
        DistributedModel model(net);
        model.set_partition("", 0);
        model.set_partition("inner", stage);
        smp::step([&](const Tensor& own) { model.backward(loss_of(model(own), own)); })(x);
      });
      if (pp_rank() != stage) return;
      EXPECT_LE((gradient - reference).abs().max().item<double>(), 1e-12);
    });
  }
}

TEST(Aliases, TheSameArgumentTwice) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors in) {
                     EXPECT_TRUE(in[0].is_same(in[1]));
                     return Tensors{in[0] * in[1] * self.weight, in[1]};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     auto y = elsewhere->forward({h, h});
                     EXPECT_TRUE(y[1].is_same(h));
                     return odd_sum(y[0]) + odd_sum(y[1]);
                   }});
}

TEST(Aliases, InPlaceChangesOfArgumentsReachTheCaller) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors in) {
                     in[0].mul_(self.weight);
                     in[0].narrow(1, 0, 2).add_(1);
                     return Tensors{in[0].tanh(), in[0]};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     const auto before = h * 1;
                     auto y = elsewhere->forward({before});
                     EXPECT_TRUE(y[1].is_same(before));
                     return odd_sum(before) + odd_sum(y[0]) + odd_sum(h);
                   }});
}

TEST(Aliases, SoDoThoseWithoutHistory) {
  expect_as_alone({[](ElsewhereImpl&, Tensors in) {
                     const at::NoGradGuard no_grad;
                     in[0].add_(1);
                     in[1].fill_(7);
                     return Tensors{};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     const auto before = h * 1;
                     const auto index = torch::zeros({2}, torch::kLong);
                     elsewhere->forward({before, index});
                     EXPECT_EQ(index[1].item<int>(), 7);
                     return odd_sum(before);
                   }});
}

TEST(Aliases, AViewPassedAndChangedThereChangesItsBase) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors in) {
                     in[0].mul_(self.weight.narrow(0, 0, 2).view({1, 2}));
                     return Tensors{};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     const auto before = h * 1;
                     elsewhere->forward({before.narrow(1, 1, 2)});
                     return odd_sum(before);
                   }});
}

TEST(Aliases, DetachedOnesShareMemoryAndNoHistory) {
  expect_as_alone({[](ElsewhereImpl&, Tensors in) { return Tensors{in[0].detach()}; },
                   [](Tensor h, Elsewhere& elsewhere) {
                     const auto before = h * 1;
                     const auto y = elsewhere->forward({before})[0];
                     EXPECT_FALSE(y.requires_grad());
                     y.mul_(2);
                     return before.sum() + y.pow(2).sum();
                   }});
}

/// The input itself, with twice its gradient.
struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(Aliases, HooksAndCustomFunctionsSeeTheGradient) {
  expect_as_alone(
      {[](ElsewhereImpl&, Tensors in) {
         in[0].register_hook([](const Tensor& g) { return g * 3; });
         return Tensors{in[0]};
       },
       [](Tensor h, Elsewhere& elsewhere) { return odd_sum(elsewhere->forward({h * 1})[0]); }});
  expect_as_alone(
      {[](ElsewhereImpl&, Tensors in) { return Tensors{Doubled::apply(in[0])}; },
       [](Tensor h, Elsewhere& elsewhere) { return odd_sum(elsewhere->forward({h})[0]); }});
}

TEST(Aliases, WithoutGradMode) {
  expect_as_alone({[](ElsewhereImpl&, Tensors in) {
                     in[0].add_(1);
                     return Tensors{in[0], in[0].t()};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     auto y = elsewhere->forward({h});
                     y[1].mul_(2);
                     return odd_sum(h) + odd_sum(y[0]);
                   },
                   /*grad=*/false});
}

TEST(Aliases, ParametersAreReturnedWithTheirGradients) {
  expect_as_alone({[](ElsewhereImpl& self, Tensors) {
                     return Tensors{self.weight, self.weight.narrow(0, 1, 2), self.weight.detach()};
                   },
                   [](Tensor h, Elsewhere& elsewhere) {
                     auto y = elsewhere->forward({});
                     return odd_sum(h * y[0]) + odd_sum(y[1]) + y[2].sum() * h.sum();
                   }});
}

TEST(Aliases, AReturnedBufferMayChangeForTheNextMicrobatch) {
  on_ranks(
      2,
      [] {
        const Program program{
            [](ElsewhereImpl& self, Tensors) {
              self.state.add_(1);
              return Tensors{self.state};
            },
            [](Tensor, Elsewhere& elsewhere) { return elsewhere->forward({})[0]; }};
        const auto net = make_net(program);
        DistributedModel<SmallNet> model(net);
        model.set_partition("", 0);
        model.set_partition("elsewhere", 1);
        auto read = smp::step([&](Tensor x) { return model(x); });
        for (int step = 0; step < 3; ++step) {
          auto values = read(rows(16)).stack().flatten(1);
          EXPECT_TRUE(at::equal(std::get<0>(values.min(1)), std::get<0>(values.max(1))));
          EXPECT_TRUE(at::equal(std::get<0>(values.select(1, 0).sort()),
                                torch::arange(1 + 8 * step, 9 + 8 * step, torch::kDouble)));
        }
      },
      8);
}

TEST(Aliases, WhatCannotBeDoneAtTheCallerIsRefused) {
  on_ranks(2, [&] {
    const Program program{[&](ElsewhereImpl&, Tensors in) {
                            in[0].detach_();
                            return Tensors{};
                          },
                          [](Tensor h, Elsewhere& elsewhere) {
                            elsewhere->forward({h * 1});
                            return h.sum();
                          }};
    const auto net = make_net(program);
    DistributedModel<SmallNet> model(net);
    model.set_partition("", 0);
    model.set_partition("elsewhere", 1);
    auto train = smp::step([&](Tensor x) { return model(x); });
    EXPECT_THAT(refusal<RemoteError>([&] { train(rows(4)); }),
                AllOf(HasSubstr("elsewhere changed tensor 0 of its arguments in place"),
                      HasSubstr("out-of-place")));
  });
}

/// One process would go on with the changed tensor.
TEST(Aliases, AChangedArgumentAndAnExceptionEndTheStep) {
  on_ranks(2, [&] {
    const Program program{[&](ElsewhereImpl&, Tensors in) -> Tensors {
                            in[0].mul_(2);
                            throw std::invalid_argument("too late");
                          },
                          [](Tensor h, Elsewhere& elsewhere) {
                            auto y = h * 1;
                            try {
                              elsewhere->forward({y});
                            } catch (const std::exception&) {
                            }
                            return y.sum();
                          }};
    const auto net = make_net(program);
    DistributedModel<SmallNet> model(net);
    model.set_partition("", 0);
    model.set_partition("elsewhere", 1);
    auto train = smp::step([&](Tensor x) { return model(x); });
    EXPECT_THAT(refusal<std::invalid_argument>([&] { train(rows(4)); }),
                AllOf(HasSubstr("too late"), HasSubstr("changed its arguments in place")));
  });
}

TEST(Aliases, OutputsOfAStepAreNobodyElses) {
  on_ranks(2, [] {
    FarModel own;
    const auto x = rows(4, 3);
    const auto before = x.clone();
    Tensor shared = torch::zeros({2, 3}, torch::kDouble);
    auto run = smp::step([&](Tensor slice) {
      auto y = own.model(slice);
      own.model.backward(y.sum());
      return Tensors{slice, slice.t(), shared, y, y};
    });
    const auto out = run(x).outputs();
    for (const auto& microbatch : out) {
      for (auto tensor : microbatch) tensor.zero_();
    }
    EXPECT_TRUE(at::equal(x, before));
    const auto again = run(x).outputs();
    again[0][2].fill_(9);
    again[0][3].fill_(9);
    EXPECT_EQ(again[1][2].sum().item<double>(), 0);
    EXPECT_EQ(shared.sum().item<double>(), 0);
    EXPECT_NE(again[0][4].max().item<double>(), 9);
  });
}

TEST(Aliases, OutputsOfAStepMayBeWrittenToAtOnce) {
  on_ranks(3, [] {
    auto run = smp::step([&](Tensor slice) { return slice.expand({100, 100, 3}).clone() * 2; });
    for (int step = 0; step < 3; ++step) {
      const auto out = run(torch::ones({2, 3})).outputs();
      for (auto tensor : out) {
        EXPECT_EQ(tensor.sum().item<float>(), 60'000);
        tensor.zero_();
      }
    }
  });
}

}  // namespace aliases_test
}  // namespace smp
