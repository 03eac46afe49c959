// Calls of remote modules that return before their results are there: the same numbers as in one
// process, and the same bits as without promises (docs/design.md, Promised outputs).
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/piece_programs.h"

namespace smp {
namespace promised_outputs_test {

struct OwnCodec {
  at::Tensor tensor;
};

}  // namespace promised_outputs_test

template <>
struct Codec<promised_outputs_test::OwnCodec> {
  static void encode(Writer& out, const promised_outputs_test::OwnCodec& value) {
    out.put(value.tensor);
    out.put(value.tensor.numel());
  }
  static promised_outputs_test::OwnCodec decode(Reader& in) {
    auto tensor = in.get<at::Tensor>();
    in.get<std::int64_t>();
    return {std::move(tensor)};
  }
};

namespace promised_outputs_test {

using at::Tensor;
using namespace piece_programs;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(PromisedOutputs, OfAChainAreWhatOneProcessComputes) {
  const Program program{std::vector<PieceImpl::Act>(4, multiply),
                        [](PiecesImpl& net, const Tensor& x) { return chain(net, x).sum(); }};
  expect_as_alone(program, {{1, 1, 1, 1}, {1, 2, 3, 1}, {1, 2, 1, 2}, {0, 1, 1, 0}});
}

TEST(PromisedOutputs, HaveSeveralConsumersOrNone) {
  const Program program{std::vector<PieceImpl::Act>(4, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x);
                          const auto a = p[1](y), b = p[2](y);
                          p[3](y);
                          return (p[3](a) * p[1](b)).sum() + y.mean();
                        }};
  expect_as_alone(program, {{1, 1, 1, 1}, {1, 2, 3, 1}});
}

TEST(PromisedOutputs, MayBePairsAndOneTensorTwice) {
  const Program program{std::vector<PieceImpl::Act>(3, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x);
                          const auto [a, b] = p[1]->both(y, y);
                          const auto [c, d] = p[2]->both(b, x);
                          return (a * c).sum() + d.mean();
                        }};
  expect_as_alone(program, {{1, 1, 1}, {1, 2, 3}, {1, 0, 2}});
}

TEST(PromisedOutputs, AreTensorsInEveryWay) {
  const Program program{std::vector<PieceImpl::Act>(8, add), [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          EXPECT_EQ(p[0](x).size(0), 2);
                          EXPECT_EQ(p[0](x).sizes(), x.sizes());
                          EXPECT_TRUE(p[0](x).is_contiguous());
                          EXPECT_EQ(p[0](x).numel(), 6);
                          EXPECT_TRUE(p[0](x).requires_grad());
                          EXPECT_EQ(p[0](x).dtype(), torch::kDouble);
                          auto changed = p[1](x);
                          changed.mul_(2).add_(1);
                          auto hooked = p[2](x);
                          hooked.register_hook([](const Tensor& gradient) { return gradient * 3; });
                          const auto view = p[3](x).view({3, 2});
                          auto kept = p[4](x);
                          kept.retain_grad();
                          const auto element = p[5](x)[1][2];
                          const auto joined = torch::cat({p[6](x), p[7](x), x}, 0);
                          EXPECT_EQ(p[7](x).detach().requires_grad(), false);
                          EXPECT_GT(p[7](x).abs().sum().item<double>(), 0);
                          return changed.sum() + hooked.sum() + view.pow(2).sum() + kept.sum() +
                                 element + joined.sum();
                        }};
  expect_as_alone(program, {{1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 1, 2, 1, 2, 1, 2}});
}

/// Of 64 KiB, so that it leaves without a copy where nobody writes to it.
TEST(PromisedOutputs, ArgumentsMayBeWrittenRightAfterTheCall) {
  const Program program{std::vector<PieceImpl::Act>(3, add), [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          auto large = x.repeat({2000, 1});
                          const auto a = p[0](large);
                          large.mul_(-1);
                          const auto b = p[1](large);
                          large.zero_();
                          return (p[2](a) * b).mean() + large.sum();
                        }};
  expect_as_alone(program, {{1, 1, 1}, {1, 2, 3}});
}

TEST(PromisedOutputs, OneConsumerThatWritesDoesNotDisturbAnother) {
  const PieceImpl::Act writes = [](PieceImpl& self, const Tensor& x) {
    auto own = x * 1;
    return own.mul_(self.weight);
  };
  const PieceImpl::Act detached = [](PieceImpl& self, const Tensor& x) {
    return x.detach().clone().mul_(2) + x * self.weight;
  };
  const Program program{{multiply, writes, detached, writes}, [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x.repeat({2000, 1}));
                          return (p[1](y) * p[2](y) + p[3](y)).mean() + y.sum() * 0.01;
                        }};
  expect_as_alone(program, {{1, 1, 1, 1}, {1, 2, 1, 3}});
}

/// As with stochastic depth: a layer is left out now and then. In the first step every call is
/// awaited, in the second it is seen where results go, in the third they go there.
TEST(PromisedOutputs, MayTurnOutToBeTheArgument) {
  for (const int first_step : {0, 1, 2, 3}) {
    const PieceImpl::Act sometimes = [first_step](PieceImpl& self, const Tensor& x) {
      return running_step < first_step ? multiply(self, x) : x;
    };
    const Program chained{{multiply, sometimes, sometimes, multiply},
                          [](PiecesImpl& net, const Tensor& x) { return chain(net, x).sum(); }};
    expect_as_alone(chained, {{1, 1, 1, 1}, {1, 2, 3, 1}, {0, 1, 2, 0}});
    const Program used_here{{multiply, sometimes, sometimes, multiply},
                            [](PiecesImpl& net, const Tensor& x) {
                              auto& p = net.pieces;
                              const auto y = p[0](x);
                              const auto z = p[1](y);
                              return p[3](p[2](z)).sum() + (y * z).mean();
                            }};
    expect_as_alone(used_here, {{1, 1, 1, 1}, {1, 2, 3, 1}});
  }
}

/// Nobody who got it knew that it is a view: where its consumers would need that, it is an error.
TEST(PromisedOutputs, ThatTurnOutToBeViewsAreRightOrRefused) {
  for (const bool waits : {false, true}) {
    const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
      return running_step < 2 ? multiply(self, x) : x.view({2, 3});
    };
    const Program program{{multiply, sometimes, multiply},
                          [waits](PiecesImpl& net, const Tensor& x) {
                            auto& p = net.pieces;
                            auto y = p[1](p[0](x));
                            if (waits) y = smp::wait(y);
                            return p[2](y).sum();
                          }};
    if (waits) {
      expect_as_alone(program, {{1, 2, 1}});
    } else {
      EXPECT_THAT(refusal<UnsupportedError>([&] {
                    run_on({1, 2, 1}, program, true);
                  }),
                  AllOf(HasSubstr("module 'p1'"), HasSubstr("shares memory with its arguments"),
                        HasSubstr("smp::wait()")));
    }
  }
}

TEST(PromisedOutputs, WithoutGradients) {
  const Program program{std::vector<PieceImpl::Act>(3, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          const at::NoGradGuard no_grad;
                          return chain(net, x).sum();
                        },
                        false};
  expect_as_alone(program, {{1, 1, 1}, {1, 2, 1}});
}

/// A gradient goes from rank to rank, or there is none: then nothing below is reached, and what was
/// not reached may be reached by another backward.
TEST(PromisedOutputs, GradientsOfArgumentsThatAreNotUsed) {
  const PieceImpl::Act ignores = [](PieceImpl& self, const Tensor& x) {
    return self.weight * 2 + torch::zeros_like(x);
  };
  const Program unused{{multiply, multiply, ignores, multiply},
                       [](PiecesImpl& net, const Tensor& x) { return chain(net, x).sum(); }};
  expect_as_alone(unused, {{1, 1, 1, 1}, {1, 2, 3, 1}, {1, 2, 1, 2}, {0, 1, 2, 0}});
  const Program now_and_then{{multiply,
                              [&](PieceImpl& self, const Tensor& x) {
                                return running_step % 2 == 0 ? ignores(self, x) : multiply(self, x);
                              },
                              multiply},
                             [](PiecesImpl& net, const Tensor& x) { return chain(net, x).sum(); }};
  expect_as_alone(now_and_then, {{1, 1, 1}, {1, 2, 3}});
}

/// Of two passes over one graph the first leaves alone what it does not reach.
TEST(PromisedOutputs, GraphsMayBeReachedByALaterBackward) {
  const PieceImpl::Act ignores = [](PieceImpl& self, const Tensor& x) {
    return self.weight * 2 + torch::zeros_like(x);
  };
  const auto two_losses = [](auto&& backward, PiecesImpl& net, const Tensor& x) {
    auto& p = net.pieces;
    const auto y = p[1](p[0](x));
    const auto first = p[2](y).sum();
    const auto second = p[3](y).sum();
    backward(first);
    backward(second);
    return (first + second).detach();
  };
  const std::vector<PieceImpl::Act> acts{multiply, multiply, ignores, multiply};
  Results reference;
  Pieces alone(acts);
  const auto x = rows(2);
  for (int step = 0; step < kSteps; ++step) {
    two_losses([](const Tensor& loss) { loss.backward(); }, *alone, x);
  }
  for (const auto& item : alone->named_parameters()) {
    note(reference, item.key(), item.value().grad());
  }
  for (const bool promised : {false, true}) {
    Config config;
    config.plan_cache = "off";
    config.promised_outputs = promised;
    Results results;
    run_local(
        4,
        [&] {
          Pieces net(acts);
          DistributedModel<Pieces> model(net);
          model.set_partition("", 0);
          for (int i = 0; i < 4; ++i) model.set_partition("p" + std::to_string(i), i);
          auto train = smp::step([&](Tensor input) {
            return two_losses([&](const Tensor& loss) { model.backward(loss); }, *net, input);
          });
          for (int step = 0; step < kSteps; ++step) train(x);
          for (const auto& [name, parameter] : model.local_named_parameters()) {
            note(results, name, parameter.grad());
          }
        },
        config);
    expect_close(results, reference);
  }
}

/// Whoever looks at a gradient sees it.
TEST(PromisedOutputs, HooksBetweenRemoteModulesSeeGradients) {
  const Program program{std::vector<PieceImpl::Act>(4, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          auto y = p[1](p[0](x));
                          y.register_hook([](const Tensor& gradient) { return gradient * 3; });
                          auto z = p[2](y);
                          z.retain_grad();
                          return p[3](z).sum();
                        }};
  expect_as_alone(program, {{1, 1, 1, 1}, {1, 2, 3, 1}});
}

TEST(PromisedOutputs, AnExceptionInBackwardEndsTheStep) {
  bool now = false;  // of all ranks, which set it alike
  const PieceImpl::Act fails = [&now](PieceImpl& self, const Tensor& x) {
    auto y = multiply(self, x);
    y.register_hook([&now](const Tensor&) {
      if (now) throw std::invalid_argument("not today");
    });
    return y * 1;
  };
  for (const std::uint64_t seed : {0, 1, 2, 3, 4, 5}) {
    Config config;
    config.plan_cache = "off";
    config.promised_outputs = seed > 0;
    run_local(4,
              [&] {
                Pieces net(std::vector<PieceImpl::Act>{multiply, multiply, fails, multiply});
                DistributedModel<Pieces> model(net);
                model.set_partition("", 0);
                for (int i = 0; i < 4; ++i) model.set_partition("p" + std::to_string(i), i);
                auto train = smp::step([&](Tensor x) {
                  auto loss = chain(*net, x).sum();
                  model.backward(loss);
                  return loss.detach();
                });
                for (int step = 0; step < 3; ++step) {
                  now = step == 2;
                  if (!now) train(rows(4));
                }
                EXPECT_THAT(
                    refusal<std::exception>([&] { train(rows(4)); }),
                    AllOf(HasSubstr("not today"), HasSubstr("p2"), Not(HasSubstr("not run"))));
                now = false;
                train(rows(4));
              },
              config, {.seed = seed});
  }
}

TEST(PromisedOutputs, AnExceptionComesWithTheFirstUse) {
  bool now = false;  // of all ranks, which set it alike
  const PieceImpl::Act refuses = [&now](PieceImpl& self, const Tensor& x) {
    if (now) throw std::invalid_argument("not today");
    return multiply(self, x);
  };
  for (const bool promised : {false, true}) {
    Config config;
    config.microbatches = 2;
    config.plan_cache = "off";
    config.promised_outputs = promised;
    run_local(3,
              [&] {
                Pieces net(std::vector<PieceImpl::Act>{multiply, refuses, multiply});
                DistributedModel<Pieces> model(net);
                model.set_partition("", 0);
                for (int i = 0; i < 3; ++i) model.set_partition("p" + std::to_string(i), 1 + i % 2);
                int caught_at_wait = 0;
                auto train = smp::step([&](Tensor x) {
                  auto& p = net->pieces;
                  auto y = p[0](x);
                  try {
                    y = smp::wait(p[1](y));
                  } catch (const std::invalid_argument& error) {
                    EXPECT_THAT(error.what(), HasSubstr("not today"));
                    ++caught_at_wait;
                  }
                  auto loss = p[2](y).sum();
                  model.backward(loss);
                  return loss.detach();
                });
                auto careless = smp::step([&](Tensor x) {
                  auto loss = chain(*net, x).sum();
                  model.backward(loss);
                  return loss.detach();
                });
                for (int step = 0; step < 3; ++step) {
                  now = step > 0;
                  train(rows(4));
                }
                EXPECT_EQ(caught_at_wait, rank() == 0 ? 4 : 0);
                EXPECT_THAT(refusal<std::exception>([&] { careless(rows(4)); }),
                            HasSubstr("not today"));
                now = false;
                careless(rows(4));
              },
              config, {.seed = 3});
  }
}

TEST(PromisedOutputs, WaitIsForValuesOfAnyKind) {
  const auto x = rows(2);
  EXPECT_TRUE(smp::wait(x).is_same(x));
  EXPECT_EQ(smp::wait(std::pair(x, 3)).second, 3);
  smp::wait();
  const Program program{std::vector<PieceImpl::Act>(2, multiply),
                        [](PiecesImpl& net, const Tensor& input) {
                          const auto y = smp::wait(net.pieces[0](input));
                          EXPECT_NE(y.data_ptr(), nullptr);
                          return net.pieces[1](y).sum();
                        }};
  expect_as_alone(program, {{1, 2}});
}

struct Two {
  Tensor a, b;
};
static_assert(holds_only_tensors_v<Two>);
static_assert(!holds_only_tensors_v<OwnCodec>, "which may write anything");
static_assert(holds_only_tensors_v<Tensor>);
static_assert(holds_only_tensors_v<std::pair<Tensor, std::array<Tensor, 2>>>);
static_assert(holds_only_tensors_v<std::tuple<Tensor, std::tuple<Tensor>>>);
static_assert(!holds_only_tensors_v<std::vector<Tensor>>);
static_assert(!holds_only_tensors_v<std::pair<Tensor, int>>);
static_assert(!holds_only_tensors_v<std::optional<Tensor>>);
static_assert(!holds_only_tensors_v<std::tuple<>>);

}  // namespace promised_outputs_test
}  // namespace smp
