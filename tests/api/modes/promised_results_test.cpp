// What promised results turn out to be, unlike those of earlier calls: right, or refused by name
// (docs/design.md, Promised outputs).
#include <torch/types.h>

#include <string>
#include <vector>

#include "api/state/piece_programs.h"

namespace smp {
namespace promised_results_test {

using at::Tensor;
using namespace piece_programs;
using testing::AllOf;
using testing::HasSubstr;

TEST(PromisedOutputs, MayTurnOutToNeedNoGradient) {
  for (const bool second : {false, true}) {
    const PieceImpl::Act sometimes = [second](PieceImpl& self, const Tensor& x) {
      const auto y = multiply(self, x);
      return running_step == (second ? 2 : 3) ? y.detach() : y;
    };
    const Program chained{{multiply, sometimes, multiply},
                          [](PiecesImpl& net, const Tensor& x) { return chain(net, x).sum(); }};
    expect_as_alone(chained, {{1, 1, 1}, {1, 2, 1}, {1, 2, 3}});
    const Program used{{sometimes, multiply}, [](PiecesImpl& net, const Tensor& x) {
                         auto& p = net.pieces;
                         const auto [a, b] = p[0]->both(x, x);
                         return (a * p[1](b)).sum() + (b * x).sum() + p[1](x).sum();
                       }};
    expect_as_alone(used, {{1, 1}, {1, 2}});
  }
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

/// Then hooks of the result are hooks of the argument: late ones are, and early ones are refused.
TEST(PromisedOutputs, HooksOfAResultThatTurnsOutToBeTheArgument) {
  for (const bool early : {false, true}) {
    const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
      return running_step < 3 ? multiply(self, x) : x;
    };
    const Program program{{multiply, sometimes, multiply},
                          [early](PiecesImpl& net, const Tensor& x) {
                            auto& p = net.pieces;
                            const auto y = p[1](p[0](x));
                            const auto add_hook = [&] {
                              y.register_hook([](const Tensor& gradient) { return gradient * 3; });
                            };
                            if (early) add_hook();
                            const auto z = p[2](x);  // else y would be awaited
                            const auto sum = y.sum();
                            if (!early) add_hook();
                            return sum + (z * y).sum() + y.square().mean();
                          }};
    if (!early) {
      expect_as_alone(program, {{1, 2, 1}, {1, 1, 1}});
    } else {
      EXPECT_THAT(refusal<UnsupportedError>([&] {
                    run_on({1, 2, 1}, program, true);
                  }),
                  AllOf(HasSubstr("module 'p1'"), HasSubstr("has a hook or retains its gradient"),
                        HasSubstr("smp::wait()")));
    }
  }
}

/// One that is linked does not keep its neighbours from having hooks.
TEST(PromisedOutputs, HooksBesideAResultThatTurnsOutToBeTheArgument) {
  const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
    return running_step < 3 ? multiply(self, x) : x;
  };
  const Program program{{multiply, sometimes}, [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto [sum, same] = p[1]->both(p[0](x), x * 2);
                          sum.register_hook([](const Tensor& gradient) { return gradient * 3; });
                          return (p[0](x) * sum).sum() + same.sum();
                        }};
  expect_as_alone(program, {{1, 2}, {1, 1}});
}

/// What its results are is not known then, so the step cannot go on, whoever catches that.
TEST(PromisedOutputs, WhoseAnswerIsRefusedEndTheStepThoughTheRefusalIsCaught) {
  const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
    return running_step < 2 ? multiply(self, x) : x.view({2, 3});
  };
  const Program program{{multiply, sometimes, multiply}, [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[1](p[0](x));
                          const auto z = p[2](y);
                          try {
                            EXPECT_TRUE(y.sum().defined());
                          } catch (const UnsupportedError&) {
                          }
                          return (z * x).sum();
                        }};
  EXPECT_THAT(refusal<UnsupportedError>([&] {
                run_on({1, 2, 1}, program, true);
              }),
              AllOf(HasSubstr("module 'p1'"), HasSubstr("shares memory with its arguments")));
}

TEST(PromisedOutputs, ThatTurnOutToBeSparseAreRefused) {
  const Program program{{multiply,
                         [](PieceImpl& self, const Tensor& x) {
                           const auto y = multiply(self, x);
                           return running_step < 2 ? y : y.to_sparse();
                         }},
                        [](PiecesImpl& net, const Tensor& x) {
                          const auto y = chain(net, x), z = net.pieces[0](x);
                          return z.sum() + y.sum();
                        }};
  EXPECT_THAT(refusal<UnsupportedError>([&] {
                run_on({1, 1}, program, true);
              }),
              AllOf(HasSubstr("module 'p1'"), HasSubstr("was dense in earlier calls")));
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

/// In one process its caller would have seen the change; here it may have looked already.
TEST(PromisedOutputs, OfACallThatChangesItsArgumentUnlikeEarlierOnesAreRefusedOnce) {
  constexpr int kChanges = 2;  // the first step whose calls are promised
  const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
    if (running_step >= kChanges) x.mul_(2);
    return x + self.weight;
  };
  const Program program{{add, sometimes, add}, [](PiecesImpl& net, const Tensor& x) {
                          const auto y = net.pieces[0](x);
                          const auto z = net.pieces[1](y);
                          const auto other = net.pieces[2](x);  // or the next would be awaited
                          const auto seen = y.sum();
                          return seen + z.sum() + other.sum();
                        }};
  const auto alone = run_alone(program);
  expect_close(run_on({1, 1, 1}, program, false), alone);
  on_ranks(
      2,
      [&] {
        Pieces net(program.acts);
        DistributedModel<Pieces> model(net);
        model.set_partition("", 0);
        for (const char* piece : {"p0", "p1", "p2"}) model.set_partition(piece, 1);
        auto train = smp::step([&](Tensor x) {
          auto loss = program.body(*net, x);
          model.backward(loss);
          return loss.detach();
        });
        for (int step = 0; step < kSteps; ++step) {
          running_step = step;
          const auto run = [&] { return train(rows(2 * kMicrobatches)).reduce_mean(); };
          if (step == kChanges) {
            EXPECT_THAT(refused_step<UnsupportedError>(0, run),
                        AllOf(HasSubstr("module 'p1' on rank 1"), HasSubstr("argument 0 in place"),
                              HasSubstr("promised_outputs to false")));
          } else {
            EXPECT_TRUE(at::allclose(run(), alone.at("loss " + std::to_string(step)))) << step;
          }
        }
      },
      kMicrobatches);
}

}  // namespace promised_results_test
}  // namespace smp
