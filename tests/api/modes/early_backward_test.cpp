// The backward of a loss that a remote module has promised begins without its caller: the same
// numbers as in one process, the same bits as without promises, and where it cannot, nothing begins
// (docs/design.md, Promised outputs).
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "api/rank/rank.h"
#include "api/state/piece_programs.h"
#include "server/replay/recorded_steps.h"

namespace smp {
namespace early_backward_test {

using namespace piece_programs;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Tensor loss_of(PieceImpl& self, const Tensor& x) { return (x * self.weight).square().mean(); }

Tensor chained(PiecesImpl& net, const Tensor& x) { return chain(net, x); }

/// Losses whose backward was asked for early, in kSteps steps of kMicrobatches.
std::uint64_t early_of(const std::vector<int>& ranks, const Program& program,
                       const char* pipeline = "interleaved") {
  std::uint64_t early = 0;
  run_on(ranks, program, true, 1, pipeline,
         [&] { early += Rank::current().server().core().counters.early; });
  return early;
}

/// At least: in the first step calls are awaited, in the second it is seen where results go.
constexpr std::uint64_t kAll = (kSteps - 2) * kMicrobatches;

/// A body that returns the loss needs its value in every microbatch: it comes with the answer.
TEST(EarlyBackward, ALossIsNotAskedForByItself) {
  const Program program{{multiply, loss_of}, chained};
  for (const char* pipeline : {"simple", "interleaved", "1f1b"}) {
    run_on({0, 1}, program, true, 1, pipeline,
           [] { EXPECT_EQ(Rank::current().server().core().counters.fetched, 0u); });
  }
}

TEST(EarlyBackward, OfAChainIsThatOfOneProcess) {
  const Program program{{multiply, multiply, multiply, loss_of}, chained};
  const std::vector<std::vector<int>> placements{
      {1, 1, 1, 1}, {1, 2, 3, 1}, {1, 2, 1, 2}, {0, 1, 2, 3}, {0, 1, 0, 1}};
  expect_as_alone(program, placements);
  for (const auto& ranks : placements) EXPECT_GE(early_of(ranks, program), kAll);
}

/// Under "simple" all forwards come first.
TEST(EarlyBackward, WaitsForTheSchedule) {
  const Program program{{multiply, loss_of}, chained};
  EXPECT_EQ(early_of({0, 1}, program, "simple"), 0u);
  EXPECT_GE(early_of({0, 1}, program, "1f1b"), kAll);
}

TEST(EarlyBackward, GoesOnWithWhatFollowsFromTheLossAlone) {
  const Program branches{{multiply, multiply, multiply, multiply, loss_of},
                         [](PiecesImpl& net, const Tensor& x) {
                           auto& p = net.pieces;
                           const auto y = p[0](x);
                           const auto [a, b] = p[3]->both(p[1](y), p[2](y));
                           return p[4](a + b);
                         }};
  expect_as_alone(branches, {{1, 1, 1, 1, 1}, {1, 2, 3, 1, 2}, {0, 1, 2, 3, 1}});
  const Program twice{{multiply, loss_of}, [](PiecesImpl& net, const Tensor& x) {
                        auto& p = net.pieces;
                        return p[1](p[0](p[0](x)));
                      }};
  expect_as_alone(twice, {{1, 1}, {1, 2}, {0, 1}});
  EXPECT_GE(early_of({1, 2}, twice), kAll);
}

/// The module of the loss calls others, on its own rank and further away, one of them twice.
struct LossImpl : torch::nn::Module {
  LossImpl()
      : near(register_module("near", Piece(multiply))),
        far(register_module("far", Piece(multiply))) {}
  Tensor forward(const Tensor& x) { return far(near(x) + far(x)).square().mean(); }
  Piece near, far;
};
SMP_MODULE(Loss);
struct NestImpl : torch::nn::Module {
  NestImpl()
      : first(register_module("first", Piece(multiply))), loss(register_module("loss", Loss())) {}
  Tensor forward(const Tensor& x) { return loss(first(x)); }
  Piece first;
  Loss loss;
};
SMP_MODULE(Nest);

/// A loss, and what may come beside it.
Tensor loss_in(const Tensor& result) { return result; }
Tensor loss_in(const std::pair<Tensor, Tensor>& result) { return result.first; }

/// Trains a `Net` whose "loss" is on rank 1, with "loss.far" on rank `far`, alone and over ranks.
/// @param use  what the body does with the result after its backward
template <class Net>
void expect_as_alone_with(int far, std::uint64_t seeds, const auto& use) {
  Results reference;
  Net alone;
  for (const auto& x : rows(2 * kMicrobatches).chunk(kMicrobatches)) {
    (loss_in(alone(x)) / kMicrobatches).backward();
  }
  for (const auto& item : alone->named_parameters()) {
    note(reference, item.key(), item.value().grad());
  }
  for (const char* pipeline : {"simple", "interleaved", "1f1b", "zero_bubble"}) {
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      SCOPED_TRACE(testing::Message() << pipeline << ", seed " << seed);
      Config config;
      config.microbatches = kMicrobatches;
      config.plan_cache = "off";
      config.pipeline = pipeline;
      Results results;
      run_local(1 + std::max(1, far),
                [&] {
                  DistributedModel<Net> model(Net{});
                  model.set_partition("", 0);
                  model.set_partition("loss", 1);
                  model.set_partition("loss.far", far);
                  auto train = smp::step([&](Tensor x) {
                    const auto result = model(x);
                    model.backward(loss_in(result));
                    use(result);
                  });
                  for (int step = 0; step < kSteps; ++step) {
                    model.zero_grad();
                    train(rows(2 * kMicrobatches));
                  }
                  for (const auto& [name, parameter] : model.local_named_parameters()) {
                    note(results, name, parameter.grad());
                  }
                  const auto early = Rank::current().server().core().counters.early;
                  if (rank() == 0 && pipeline != std::string("simple")) {
                    EXPECT_GE(early, 1u);
                  }
                },
                config, {.seed = seed});
      expect_close(results, reference);
    }
  }
}

TEST(EarlyBackward, OfAModuleThatCallsOthers) {
  expect_as_alone_with<Nest>(2, 5, [](const Tensor&) {});
}

/// A large result beside it comes later than requests of its backward, which go to rank 0 as well:
/// there the body has not gone on, nor recorded itself.
struct BusyLossImpl : torch::nn::Module {
  BusyLossImpl() : far(register_module("far", Piece(multiply))) {}
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    const auto y = far(x);
    return {y.square().mean(), y.repeat({2000, 1})};
  }
  Piece far;
};
SMP_MODULE(BusyLoss);
struct BusyNestImpl : torch::nn::Module {
  BusyNestImpl()
      : first(register_module("first", Piece(multiply))),
        loss(register_module("loss", BusyLoss())) {}
  std::pair<Tensor, Tensor> forward(const Tensor& x) { return loss(first(x)); }
  Piece first;
  BusyLoss loss;
};
SMP_MODULE(BusyNest);

TEST(EarlyBackward, MayComeBackBeforeTheBodyGoesOn) {
  expect_as_alone_with<BusyNest>(0, 10, [](const auto& result) {
    EXPECT_GE(result.second.square().sum().template item<double>(), 0);
  });
}

TEST(EarlyBackward, OfAGraphThatWasFreedInPartIsRefused) {
  const Program program{{multiply, loss_of}, [](PiecesImpl& net, const Tensor& x) {
                          const auto argument = x.detach().requires_grad_();
                          const auto y = net.pieces[0](argument);
                          if (running_step == kSteps - 1) smp::grad({y.sum()}, {argument});
                          return net.pieces[1](y);
                        }};
  for (const auto& ranks : std::vector<std::vector<int>>{{1, 1}, {1, 2}}) {
    std::string error;
    try {
      run_on(ranks, program, true);
    } catch (const Error& refused) {
      error = refused.what();
    }
    EXPECT_THAT(error, AllOf(HasSubstr("backward through the graph a second time"),
                             HasSubstr("remote module 'p0'"), HasSubstr("retain_graph")));
  }
}

/// What the first pass did not reach is there for the second, which comes another way.
TEST(EarlyBackward, LeavesItsCallsToALaterPass) {
  const PieceImpl::Act ignores = [](PieceImpl& self, const Tensor&) {
    return self.weight.square().mean();
  };
  const auto two_losses = [](auto&& backward, PiecesImpl& net, const Tensor& x) {
    auto& p = net.pieces;
    const auto y = p[0](x);
    backward(p[1](y));
    backward(p[2](y));
  };
  const std::vector<PieceImpl::Act> acts{multiply, ignores, loss_of};
  Results reference;
  Pieces alone(acts);
  const auto x = rows(2);
  for (int step = 0; step < kSteps; ++step) {
    two_losses([](const Tensor& loss) { loss.backward(); }, *alone, x);
  }
  for (const auto& item : alone->named_parameters()) {
    note(reference, item.key(), item.value().grad());
  }
  for (const auto& ranks : {std::vector{1, 2, 3}, std::vector{1, 1, 2}, std::vector{1, 1, 1}}) {
    Config config;
    config.plan_cache = "off";
    Results results;
    std::uint64_t early = 0;
    run_local(
        4,
        [&] {
          Pieces net(acts);
          DistributedModel<Pieces> model(net);
          model.set_partition("", 0);
          for (std::size_t i = 0; i < ranks.size(); ++i) {
            model.set_partition("p" + std::to_string(i), ranks[i]);
          }
          auto train = smp::step([&](Tensor input) {
            two_losses([&](const Tensor& loss) { model.backward(loss); }, *net, input);
          });
          for (int step = 0; step < kSteps; ++step) train(x);
          early += Rank::current().server().core().counters.early;
          for (const auto& [name, parameter] : model.local_named_parameters()) {
            note(results, name, parameter.grad());
          }
        },
        config);
    EXPECT_GT(early, 0u);
    expect_close(results, reference);
  }
}

TEST(EarlyBackward, ASecondPassOverAFreedGraphIsRefused) {
  const std::vector<PieceImpl::Act> acts{multiply, loss_of};
  for (const auto& ranks : {std::vector{1, 1}, std::vector{1, 2}}) {
    run_local(
        3,
        [&] {
          Pieces net(acts);
          DistributedModel<Pieces> model(net);
          model.set_partition("", 0);
          for (std::size_t i = 0; i < 2; ++i) {
            model.set_partition("p" + std::to_string(i), ranks[i]);
          }
          bool twice = false;
          auto train = smp::step([&](Tensor x) {
            const auto loss = chain(*net, x);
            model.backward(loss);
            if (twice) model.backward(loss);
          });
          for (int step = 0; step < kSteps; ++step) train(rows(2));
          twice = true;
          std::string text;
          try {
            train(rows(2));
          } catch (const std::exception& error) {
            text = error.what();
          }
          EXPECT_THAT(text, HasSubstr("Trying to backward through the graph a second time: that "
                                      "of remote module 'p1', microbatch "));
        },
        Config{.plan_cache = "off"});
  }
}

/// A hook wants to see the gradient; the loss is looked at, or is one of two; another call runs.
TEST(EarlyBackward, IsLeftToThePassWhereSomebodyTakesPart) {
  const std::vector<PieceImpl::Act> acts{multiply, multiply, loss_of, loss_of};
  const auto with = [&](std::function<Tensor(PiecesImpl&, const Tensor&)> body) {
    const Program program{acts, std::move(body)};
    expect_as_alone(program, {{1, 2, 3, 1}, {0, 1, 2, 0}});
    return early_of({1, 2, 3, 1}, program);
  };
  EXPECT_EQ(with([](PiecesImpl& net, const Tensor& x) {
              auto& p = net.pieces;
              auto loss = p[2](p[1](p[0](x)));
              loss.register_hook([](const Tensor& gradient) { return gradient * 3; });
              return loss;
            }),
            0u);
  EXPECT_EQ(with([](PiecesImpl& net, const Tensor& x) {
              auto& p = net.pieces;
              auto loss = p[2](p[1](p[0](x)));
              EXPECT_GT(loss.item<double>(), 0);
              return loss;
            }),
            0u);
  EXPECT_EQ(with([](PiecesImpl& net, const Tensor& x) {
              auto& p = net.pieces;
              const auto y = p[0](x);
              return p[2](p[1](y)) + p[3](y);
            }),
            0u);
  // What nobody holds takes no part, from when its owner has heard of it.
  EXPECT_LE(with([](PiecesImpl& net, const Tensor& x) {
              auto& p = net.pieces;
              const auto y = p[0](x);
              p[3](y);
              return p[2](p[1](y));
            }),
            1u);
}

/// Between remote modules the caller adds something: only what follows from the loss alone begins.
TEST(EarlyBackward, EndsWhereGradientsMeetAtTheCaller) {
  const Program program{{multiply, multiply, multiply, loss_of},
                        [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x);
                          return p[3](p[2](y + p[1](y)));
                        }};
  expect_as_alone(program, {{1, 2, 3, 1}, {1, 1, 1, 1}, {0, 1, 2, 1}});
  EXPECT_GE(early_of({1, 2, 3, 1}, program), kAll);
}

/// As with stochastic depth. Then the loss's owner does not begin, and the pass does everything.
TEST(EarlyBackward, DoesNotBeginIfACallEndsOtherwiseThanPromised) {
  for (const int first_step : {1, 2, 3}) {
    const PieceImpl::Act sometimes = [first_step](PieceImpl& self, const Tensor& x) {
      return running_step < first_step ? multiply(self, x) : x;
    };
    for (std::size_t which = 0; which < 3; ++which) {
      std::vector<PieceImpl::Act> acts{multiply, multiply, multiply, loss_of};
      acts[which] = sometimes;
      expect_as_alone({acts, chained}, {{1, 1, 1, 1}, {1, 2, 3, 1}, {0, 1, 2, 3}});
    }
  }
  const PieceImpl::Act ignores = [](PieceImpl& self, const Tensor& x) {
    return running_step == 2 ? self.weight * 2 + torch::zeros_like(x) : multiply(self, x);
  };
  expect_as_alone({{multiply, multiply, ignores, loss_of}, chained}, {{1, 2, 3, 1}, {0, 1, 2, 3}});
  const PieceImpl::Act hooks = [](PieceImpl& self, const Tensor& x) {
    if (running_step >= 2) x.register_hook([](const Tensor& gradient) { return gradient * 2; });
    return multiply(self, x);
  };
  expect_as_alone({{multiply, hooks, multiply, loss_of}, chained}, {{1, 2, 3, 1}, {0, 1, 2, 3}});
}

/// The module of the loss is passed a number, and returns it as it is. Then nothing but the body's
/// backward holds the node that the loss hung on.
TEST(EarlyBackward, DoesNotBeginIfTheLossIsAnArgument) {
  const PieceImpl::Act mean = [](PieceImpl& self, const Tensor& x) {
    return (x * self.weight).square().mean();
  };
  const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
    return running_step < 2 ? (x * self.weight).sum() : x;
  };
  expect_as_alone({{multiply, mean, sometimes}, chained}, {{1, 2, 1}, {1, 2, 3}, {0, 1, 2}});
}

/// The body looks at a value, so that its call is awaited: the record of such a call is known here,
/// and its owner has no name for it.
TEST(EarlyBackward, GoesOnWithACallThatWasAwaited) {
  const Program program{{multiply, multiply, loss_of}, [](PiecesImpl& net, const Tensor& x) {
                          auto& p = net.pieces;
                          const auto y = p[0](x);
                          const auto scale = y.sum().item<double>() > 1e9 ? 2.0 : 1.0;
                          return p[2](p[1](y) * scale);
                        }};
  expect_as_alone(program, {{1, 1, 1}, {1, 2, 1}, {1, 2, 3}});
  const Program direct{{multiply, loss_of}, [](PiecesImpl& net, const Tensor& x) {
                         const auto y = net.pieces[0](x);
                         if (y.sum().item<double>() > 1e9) return y.sum();
                         return net.pieces[1](y);
                       }};
  expect_as_alone(direct, {{1, 1}, {1, 2}});
}

/// In static mode rank 0 tells ends to those who do not see them: here to the rank of p1, which
/// keeps no record in two steps. The others are asked for a backward, once in vain.
TEST(EarlyBackward, ThatDidNotBeginIsNotCountedAsAsked) {
  constexpr int kRecorded = server::RecordedSteps::kSteps, kLast = kRecorded + 6;
  constexpr int kDeparting = 2, kRunning = 8;  // steps, microbatches
  const PieceImpl::Act sometimes = [](PieceImpl& self, const Tensor& x) {
    const int since = running_step - kRecorded;
    const bool departs = since >= 1 && since <= kDeparting;
    return departs ? x : multiply(self, x);
  };
  for (const char* pipeline : {"1f1b", "zero_bubble"}) {
    Config config;
    config.microbatches = kRunning;
    config.plan_cache = "off";
    config.pipeline = pipeline;
    config.static_mode = true;
    std::uint64_t replayed = 0, early = 0, told = 0;
    run_local(4,
              [&] {
                Pieces net(std::vector<PieceImpl::Act>{multiply, sometimes, multiply, loss_of});
                DistributedModel<Pieces> model(net);
                model.set_partition("", 0);
                for (int i = 0; i < 4; ++i) model.set_partition("p" + std::to_string(i), i);
                auto train = smp::step([&](Tensor x) { model.backward(chain(*net, x)); });
                const auto& core = Rank::current().server().core();
                std::uint64_t before = 0;
                for (int step = 0; step < kLast; ++step) {
                  barrier();
                  running_step = step;
                  if (step == kRecorded) before = core.port.control_messages();
                  train(rows(2 * kRunning));
                }
                told += core.port.control_messages() - before;
                replayed += core.counters.replayed;
                early += core.counters.early;
              },
              config, {.seed = 1});
    EXPECT_EQ(replayed, static_cast<std::uint64_t>(kLast - kRecorded)) << pipeline;
    EXPECT_GT(early, 0u) << pipeline;
    EXPECT_EQ(told, static_cast<std::uint64_t>(kDeparting * kRunning)) << pipeline;
  }
}

/// More than one number: the caller says what it says without promises.
TEST(EarlyBackward, OfALossThatIsNoNumberIsRefused) {
  const PieceImpl::Act grows = [](PieceImpl& self, const Tensor& x) {
    return running_step < 2 ? loss_of(self, x) : multiply(self, x);
  };
  for (const bool promised : {false, true}) {
    EXPECT_THAT(refusal<UsageError>([&] {
                  run_on({0, 1}, {{multiply, grows}, chained}, promised);
                }),
                HasSubstr("tensor 0 has shape [2, 3]"));
  }
}

constexpr int kFailing = 2;

/// What step kFailing throws on rank 0; the one after it is good.
std::string error_of(const std::vector<PieceImpl::Act>& acts, bool promised, std::uint64_t seed) {
  std::string text;
  Config config;
  config.microbatches = kMicrobatches;
  config.plan_cache = "off";
  config.promised_outputs = promised;
  run_local(4,
            [&] {
              Pieces net(acts);
              DistributedModel<Pieces> model(net);
              model.set_partition("", 0);
              for (int i = 0; i < 4; ++i) model.set_partition("p" + std::to_string(i), i);
              auto train = smp::step([&](Tensor x) { model.backward(chain(*net, x)); });
              for (int step = 0; step < kSteps; ++step) {
                running_step = step;
                if (step == kFailing) {
                  const auto own = refusal<std::exception>([&] { train(rows(2 * kMicrobatches)); });
                  if (rank() == 0) text = own;
                } else {
                  train(rows(2 * kMicrobatches));
                }
              }
              const auto& core = Rank::current().server().core();
              EXPECT_EQ(core.workers.busy(), 0u);
              EXPECT_EQ(core.counters.records_left, 0u);
            },
            config, {.seed = seed});
  return text;
}

TEST(EarlyBackward, PassesExceptionsOn) {
  const PieceImpl::Act throws = [](PieceImpl& self, const Tensor& x) {
    if (running_step == kFailing) throw std::invalid_argument("not forward");
    return multiply(self, x);
  };
  const PieceImpl::Act hook_throws = [](PieceImpl& self, const Tensor& x) {
    auto y = multiply(self, x);
    y.register_hook([](const Tensor&) {
      if (running_step == kFailing) throw std::invalid_argument("not backward");
    });
    return y * 1;
  };
  for (const bool promised : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_THAT(error_of({multiply, throws, multiply, loss_of}, promised, seed),
                  AllOf(HasSubstr("not forward"), HasSubstr("p1"), Not(HasSubstr("not run"))));
      EXPECT_THAT(error_of({multiply, hook_throws, multiply, loss_of}, promised, seed),
                  AllOf(HasSubstr("not backward"), HasSubstr("p1"), Not(HasSubstr("not run"))));
    }
  }
}

/// A body that handles an exception goes on without that microbatch, as in one process.
TEST(EarlyBackward, AForwardThatFailsLeavesNothingBehind) {
  const PieceImpl::Act refuses = [](PieceImpl& self, const Tensor& x) {
    if (running_step >= 2 && x.sum().item<double>() < 0) throw std::invalid_argument("negative");
    return multiply(self, x);
  };
  std::vector<Results> all;
  for (const bool promised : {false, true}) {
    auto& results = all.emplace_back();
    Config config;
    config.microbatches = kMicrobatches;
    config.plan_cache = "off";
    config.promised_outputs = promised;
    run_local(
        4,
        [&] {
          Pieces net(std::vector<PieceImpl::Act>{multiply, refuses, multiply, loss_of});
          DistributedModel<Pieces> model(net);
          model.set_partition("", 0);
          for (int i = 0; i < 4; ++i) model.set_partition("p" + std::to_string(i), i);
          int caught = 0;
          auto train = smp::step([&](Tensor x) {
            try {
              model.backward(chain(*net, x));
            } catch (const std::invalid_argument&) {
              ++caught;
            }
          });
          for (int step = 0; step < kSteps; ++step) {
            running_step = step;
            train(rows(2 * kMicrobatches));
          }
          EXPECT_EQ(caught, rank() == 0 ? 2 : 0);
          for (const auto& [name, parameter] : model.local_named_parameters()) {
            note(results, name, parameter.grad());
          }
        },
        config);
  }
  expect_same_bits(all[1], all[0]);
}

}  // namespace early_backward_test
}  // namespace smp
