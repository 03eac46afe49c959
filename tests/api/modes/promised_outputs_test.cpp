// Calls of remote modules that return before their results are there: the same numbers as in one
// process, and the same bits as without promises (docs/design.md, Promised outputs).
#include <torch/types.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "api/state/piece_programs.h"
#include "server/backward/dead_frames.h"

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

/// The second request comes after the word that nobody will ask for its argument any more.
TEST(PromisedOutputs, MayBeNeededByARequestWithALargeTensor) {
  const Program program{std::vector<PieceImpl::Act>(2, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto large = x.repeat({20000, 1});
                          auto y = p[0](x.narrow(0, 0, 1));
                          const auto [a, b] = p[1]->both(large, y);
                          const auto mean = y.mean();
                          y.reset();
                          return mean + a.mean() + b.mean();
                        }};
  expect_as_alone(program, {{1, 1}, {1, 2}});
}

/// A second promise has to be fetched, which takes a while, and the first one is used meanwhile.
TEST(PromisedOutputs, MayBeUsedWhileAnotherArgumentIsFetched) {
  const Program program{std::vector<PieceImpl::Act>(3, multiply),
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x), z = p[1](x);
                          const auto [a, b] = p[2]->both(z, z);
                          return (p[2]->both(y, z).first * a).sum() + y.mean() + b.mean();
                        }};
  expect_as_alone(program, {{1, 2, 1}, {1, 1, 2}});
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

// ---- tensors of every kind ---------------------------------------------------------------------

/// Large ones leave as copies that are made when one of the two is written.
TEST(PromisedOutputs, OfArgumentsThatAreLazyConjugates) {
  const auto body = [](bool negative) {
    return [negative](PiecesImpl& net, const Tensor& x) {
      const auto z = at::complex(x, 2 * x + 1).repeat({2000, 1}).conj();
      const auto y = net.pieces[1](net.pieces[0](negative ? at::imag(z) : z));
      return negative ? y.mean() : (at::real(y) + 2 * at::imag(y)).mean();
    };
  };
  for (const bool negative : {false, true}) {
    expect_as_alone({{multiply, multiply}, body(negative)}, {{1, 1}, {1, 2}});
  }
}

TEST(PromisedOutputs, ThatAreLazyConjugates) {
  const PieceImpl::Act conjugate = [](PieceImpl& self, const Tensor& x) {
    return at::complex(x * self.weight, x + 1).conj();
  };
  const PieceImpl::Act parts = [](PieceImpl& self, const Tensor& z) {
    return at::real(z) + self.weight * at::imag(z);
  };
  for (const std::int64_t times : {1, 2000}) {
    expect_as_alone({{conjugate, parts},
                     [times](PiecesImpl& net, const Tensor& x) {
                       auto& p = net.pieces;
                       return p[1](p[0](x.repeat({times, 1}))).mean();
                     }},
                    {{1, 1}, {1, 2}});
  }
}

/// The gradient of a conjugate is one: what the second returns to the first, on the same rank.
TEST(PromisedOutputs, WhoseGradientsAreLazyConjugates) {
  const PieceImpl::Act complex = [](PieceImpl& self, const Tensor& x) {
    return at::complex(x * self.weight, self.weight.expand_as(x));
  };
  const PieceImpl::Act conjugate = [](PieceImpl& self, const Tensor& z) {
    return z.conj() * self.weight;
  };
  expect_as_alone({{complex, conjugate},
                   [](PiecesImpl& net, const Tensor& x) {
                     const auto y = chain(net, x);
                     return (at::real(y) * at::imag(y)).sum();
                   }},
                  {{1, 1}, {1, 2}});
}

/// The sum over the rows of a matrix is another one if its columns lie in memory one after another.
TEST(PromisedOutputs, GradientsThatStayOnTheirRankAreContiguousAsElsewhere) {
  const PieceImpl::Act transposed = [](PieceImpl& self, const Tensor& x) {
    return x.t().contiguous() * self.weight.view({3, 1});
  };
  expect_as_alone({{add, transposed},
                   [](PiecesImpl& net, const Tensor& x) {
                     const auto many = torch::linspace(0, 9, 12'000, torch::kDouble);
                     return chain(net, many.reshape({4000, 3}) + x.sum()).sin().mean();
                   }},
                  {{1, 1}});
}

using Many = std::array<std::array<Tensor, 2>, 33>;

struct SpreadImpl : torch::nn::Module {
  Many forward(const Tensor& x) {
    Many many;
    for (std::size_t i = 0; i < many.size(); ++i) {
      many[i] = {x * weight, x + weight * static_cast<double>(i)};
    }
    return many;
  }
  Tensor weight = register_parameter("weight", torch::linspace(0.5, 1.5, 3, torch::kDouble));
};
SMP_MODULE(Spread);

struct GatherImpl : torch::nn::Module {
  Tensor forward(const Many& many) {
    auto sum = torch::zeros({}, torch::kDouble);
    for (const auto& [a, b] : many) sum = sum + (a * b * weight).sum();
    return sum;
  }
  Tensor weight = register_parameter("weight", torch::linspace(-1, 1, 3, torch::kDouble));
};
SMP_MODULE(Gather);

struct ManyNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return gather(spread(x)); }
  Spread spread = register_module("spread", Spread());
  Gather gather = register_module("gather", Gather());
};
SMP_MODULE(ManyNet);

/// After a few calls it is known that their caller does not look at any of them.
TEST(PromisedOutputs, MayBeMoreThanSixtyFour) {
  ManyNet alone;
  alone(rows(2)).backward();
  on_ranks(3, [&] {
    ManyNet net;
    DistributedModel<ManyNet> model(net);
    model.set_partition("", 0);
    model.set_partition("spread", 1);
    model.set_partition("gather", 2);
    auto train = smp::step([&](const Tensor& x) { model.backward(model(x)); });
    for (int step = 0; step < 2 * kSteps; ++step) {
      model.zero_grad();
      train(rows(2).repeat({2, 1}));
    }
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      EXPECT_TRUE(at::allclose(parameter.grad(), alone->named_parameters()[name].grad())) << name;
    }
  });
}

// ---- waits that are refused --------------------------------------------------------------------

/// The step goes on, and the answer comes when the frame that would have waited is gone.
TEST(PromisedOutputs, UsedInsideAParallelLoopAreRefused) {
  std::vector<std::string> refused;
  const Program program{
      {multiply, multiply}, [&](PiecesImpl& net, const Tensor& x) {
        const auto y = net.pieces[0](x);
        const auto z = net.pieces[1](y);
        if (is_tracing()) return z.sum();  // a child process has one thread
        server::test::inside_parallel_for(
            [&] { refused.push_back(refusal([&] { static_cast<void>(z.sum()); })); });
        EXPECT_TRUE(server::test::leaves_dead_frames_alone([&] { smp::wait(z); }));
        return z.sum();
      }};
  run_on({1, 1}, program, true);
  EXPECT_THAT(refused, testing::Contains(HasSubstr("inside at::parallel_for")));
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

/// As many calls as a deep network has: they fail one after the other, and end so, also if the
/// program has the last result and lets go of it on a fiber.
TEST(PromisedOutputs, LongRowsOfFailedCallsNeedNoDeepStack) {
  const PieceImpl::Act fails = [](PieceImpl& self, const Tensor& x) {
    if (running_step == 2) throw std::runtime_error("of no use");
    return multiply(self, x);
  };
  Tensor kept;
  const Program program{{fails, multiply}, [&](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          auto y = p[0](x);
                          for (int i = 0; i < 4000; ++i) y = p[1](y);
                          kept = y;
                          return y.sum();
                        }};
  EXPECT_THAT(refusal<std::runtime_error>([&] {
                run_on({1, 1}, program, true, 1, "simple");
              }),
              HasSubstr("of no use"));
  EXPECT_TRUE(kept.defined());
  Config config;
  config.fiber_stack_bytes = 256 << 10;
  run_local(
      1, [&] { smp::step([&] { kept.reset(); })(); }, config);
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
