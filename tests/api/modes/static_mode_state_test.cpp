// Static and fast mode: what ranks must know of each other does not get lost, though steps have no
// control messages: what they do not do alike, and state that modules keep (docs/design.md, Static
// mode).
#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "api/far_model.h"
#include "api/modes/static_mode_testing.h"
#include "api/rank/rank.h"
#include "api/two_ranks.h"

namespace smp {
namespace static_mode_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kLater = kRecorded + 3;  // a step that is replayed

/// Runs steps in which the first microbatch has no backward, so that gradients of the other wait
/// for the end. Returns what each rank was told, by step.
std::vector<std::map<int, std::string>> refusals_of(
    int steps, const std::function<void(FarModel& model, int step)>& before_step) {
  std::vector<std::map<int, std::string>> refusals(2);
  run_local(
      2,
      [&] {
        FarModel model;
        auto train = smp::step([&](const Tensor& x) {
          auto loss = model.model(x).sum();
          if (x[0][0].item<double>() > -1) model.model.backward(loss);
          return loss.detach();
        });
        const auto own = static_cast<std::size_t>(rank());
        for (int step = 0; step < steps; ++step) {
          before_step(model, step);
          try {
            train(rows(4));
          } catch (const std::exception& error) {
            refusals[own][step] = error.what();
          }
          if (step == kLater - 1 && rank() == 0) {
            EXPECT_EQ(replayed(), static_cast<std::uint64_t>(kLater - kRecorded));
          }
        }
      },
      config_of(Mode::kStatic, 2));
  return refusals;
}

/// Rank 1 noticed it when the step had ended on rank 0: there, and so everywhere, the next one
/// fails.
void expect_that_the_next_step_fails_too(const std::vector<std::map<int, std::string>>& refusals,
                                         const testing::Matcher<std::string>& words) {
  ASSERT_EQ(refusals[0].size(), 1u);
  EXPECT_THAT(refusals[0].at(kLater + 1),
              AllOf(words, HasSubstr("which had ended on rank 0 already"),
                    HasSubstr("Parameters of the ranks may differ now")));
  ASSERT_EQ(refusals[1].size(), 2u);
  EXPECT_THAT(refusals[1].at(kLater), AllOf(words, testing::Not(HasSubstr("already"))));
  EXPECT_THAT(refusals[1].at(kLater + 1), words);
}

TEST(StaticMode, NoticesThatRanksDoNotDoTheSame) {
  const auto refusals = refusals_of(kLater + 4, [](FarModel& model, int step) {
    if (rank() == 0 || step != kLater) model.model.zero_grad();
  });
  const auto words = AllOf(HasSubstr("rank 1 and rank 0 did not do the same: zero_grad()"),
                           HasSubstr("not called on rank 1"));
  expect_that_the_next_step_fails_too(refusals, words);
}

/// Of a parameter on rank 1, when its gradient is complete.
TEST(StaticMode, TellsOfAHookThatThrowsAfterTheEnd) {
  auto fails = std::make_shared<int>(0);
  const auto refusals = refusals_of(kLater + 4, [fails](FarModel& model, int step) {
    model.model.zero_grad();
    if (step == 0 && rank() == 1) {
      model.far()->linear->bias.register_hook([fails](const Tensor& gradient) -> Tensor {
        if (*fails > 0 && --*fails == 0) throw std::runtime_error("a hook of rank 1");
        return gradient;
      });
    }
    if (step == kLater && rank() == 1) *fails = 1;
  });
  expect_that_the_next_step_fails_too(refusals, HasSubstr("a hook of rank 1"));
}

/// Counts its calls, as normalisation layers do.
struct CountingImpl : torch::nn::Module {
  CountingImpl() : calls(register_buffer("calls", torch::zeros({1}, torch::kDouble))) {
    weight = register_parameter("weight", torch::ones({3}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) {
    if (counts) calls += 1;
    return x * weight + 0 * calls.detach().clone();
  }
  Tensor calls, weight;
  bool counts = false;
};
SMP_MODULE(Counting);

struct TableReaderImpl : torch::nn::Module {
  TableReaderImpl() : far(register_module("far", Counting())) {}
  Tensor forward(const Tensor& x) { return far(x); }
  Counting far;
};
SMP_MODULE(TableReader);

using Refusals = std::array<std::map<int, std::string>, 3>;  // by rank and step

/// A copy that the body on rank 0 reads, of a buffer that rank 1 owns and changes between steps.
/// @param output  of each microbatch
Refusals refusals_of_a_changed_buffer(const Tensor& output, std::uint64_t seed) {
  Refusals refusals;
  run_local(3,
            [&] {
              TableReader net;
              DistributedModel<TableReader> model(net);
              model.set_partition("", 0);
              model.set_partition("far", 1);
              auto train = smp::step([&](const Tensor& x) {
                model.backward((model(x) + net->far->calls).sum());
                return output;
              });
              const auto own = static_cast<std::size_t>(rank());
              for (int step = 0; step < kLater + 3; ++step) {
                if (step == kLater && rank() == 1) {
                  const at::NoGradGuard no_grad;
                  net->far->calls += 7;
                }
                try {
                  train(rows(4));
                } catch (const std::exception& error) {
                  refusals[own][step] = error.what();
                }
              }
              if (rank() == 0) {
                EXPECT_GE(replayed(), static_cast<std::uint64_t>(kLater - kRecorded));
              }
            },
            config_of(Mode::kStatic, 2), {.seed = seed});
  return refusals;
}

/// It may say so while the step's outputs still leave rank 0: large ones take their time.
TEST(StaticMode, NoticesABufferThatItsOwnerChanges) {
  for (const std::int64_t size : {1, 100'000}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(testing::Message() << "outputs of " << size << ", seed " << seed);
      for (const auto& own : refusals_of_a_changed_buffer(torch::zeros({size}), seed)) {
        ASSERT_FALSE(own.empty());
        EXPECT_LE(own.begin()->first, kLater + 1) << "a step later at most";
        EXPECT_THAT(own.begin()->second, AllOf(HasSubstr("buffer far.calls"), HasSubstr("stale")));
      }
    }
  }
}

/// Reads a buffer that another module has.
struct UserImpl : torch::nn::Module {
  explicit UserImpl(Tensor read) : table(std::move(read)) {
    weight = register_parameter("weight", torch::ones({3}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) { return x * weight + table; }
  Tensor table, weight;
};
SMP_MODULE(User);

struct SharedTableImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return user(far(x)); }
  Counting far = register_module("far", Counting());
  User user = register_module("user", User(far->calls));
};
SMP_MODULE(SharedTable);

/// As by a loop that warms something up, while steps are replayed.
TEST(StaticMode, TakesABufferThatAllRanksChangeAlike) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    run_local(3,
              [&] {
                SharedTable net;
                DistributedModel<SharedTable> model(net);
                model.set_partition("", 0);
                model.set_partition("far", 1);
                model.set_partition("user", 2);
                auto train = smp::step([&](const Tensor& x) {
                  auto y = model(x).sum();
                  model.backward(y);
                  return y;
                });
                for (int step = 0; step < kLater + 6; ++step) {
                  if (step >= kLater) {
                    const at::NoGradGuard no_grad;
                    net->far->calls += 7;
                  }
                  const double sum = train(rows(4)).reduce_sum().item<double>();
                  const double added = 12.0 * 7 * std::max(0, step + 1 - kLater);
                  EXPECT_NEAR(sum, rows(4).sum().item<double>() + added, 1e-9) << step;
                }
                if (rank() == 0) {
                  EXPECT_GE(replayed(), 1U);
                }
              },
              config_of(Mode::kStatic, 2), {.seed = seed});
  }
}

struct NormalImpl : torch::nn::Module {
  NormalImpl() : norm(register_module("norm", nn::BatchNorm1d(3))) { to(torch::kDouble); }
  Tensor forward(const Tensor& x) { return norm(x); }
  nn::BatchNorm1d norm;
};
SMP_MODULE(Normal);

/// Running statistics change in every step; nobody else can read them, so nobody need be told.
TEST(StaticMode, ReplaysStepsOfNormalisationLayers) {
  std::map<Mode, std::array<Tensor, 2>> statistics;
  for (const auto mode : {Mode::kRelayed, Mode::kStatic}) {
    run_local(
        2,
        [&] {
          Normal net;
          DistributedModel<Normal> model(net);
          model.set_partition("", 0);
          model.set_partition("norm", 1);
          auto train = smp::step([&](const Tensor& x) {
            auto loss = model(x).square().sum();
            model.backward(loss);
            return loss.detach();
          });
          for (int step = 0; step < kLater + 3; ++step) train(rows(8) * (1 + step));
          if (rank() == 1) {
            statistics[mode] = {net->norm->running_mean.clone(), net->norm->running_var.clone()};
          } else if (mode == Mode::kStatic) {
            EXPECT_GT(replayed(), 0u);
          }
        },
        config_of(mode, 2));
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(at::equal(statistics[Mode::kRelayed][i], statistics[Mode::kStatic][i])) << i;
  }
}

// ---- modules that turn out to keep state -------------------------------------------------------

/// A mean of what it sees in training, of use to nobody else.
struct AveragingImpl : torch::nn::Module {
  AveragingImpl() {
    mean = register_buffer("mean", torch::zeros({3}, torch::kDouble));
    weight = register_parameter("weight", torch::ones({3}, torch::kDouble));
  }
  Tensor forward(const Tensor& x) {
    if (averages && is_training()) {
      const at::NoGradGuard no_grad;
      mean.lerp_(x.mean(0), 0.1);
    }
    return x * weight - mean.clone();
  }
  Tensor mean, weight;
  bool averages = true;
};
SMP_MODULE(Averaging);

struct AveragedImpl : torch::nn::Module {
  AveragedImpl()
      : far(register_module("far", Averaging())), last(register_module("last", Piece())) {}
  Tensor forward(const Tensor& x) { return last(far(x)); }
  Averaging far;
  Piece last;
};
SMP_MODULE(Averaged);

constexpr int kInOrder = 4;  // microbatches

/// How it is found only in the midst of training that microbatches must enter a module in order.
struct Discovery {
  bool evaluates_first = false;
  bool skip_tracing = false;
  int averages_from = 0;  // that step on
  int rows = 2;           // of a microbatch
  Mode mode = Mode::kStatic;
  LocalRun run = {};
};

struct Discovered {
  Tensor mean;
  std::vector<int> refused;     // steps
  std::array<bool, 3> known{};  // by rank, at the end
  std::uint64_t replayed = 0;   // steps
};

Tensor batch_of(int step, int rows_each) { return rows(rows_each * kInOrder) * (1 + step); }

/// Its module that averages lives on rank 1, what follows on rank 2.
Discovered discover(const Discovery& how) {
  Discovered found;
  auto config = config_of(how.mode, kInOrder);
  config.skip_tracing = how.skip_tracing;
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Averaged net;
    DistributedModel<Averaged> model(net);
    model.set_partition("", 0);
    model.set_partition("far", 1);
    model.set_partition("last", 2);
    auto train = smp::step([&](const Tensor& x) { model.backward(model(x).sum()); });
    auto evaluate = smp::step([&](const Tensor& x) {
      const at::NoGradGuard no_grad;
      model(x);
    });
    if (how.evaluates_first) {
      model.eval();
      evaluate(batch_of(0, how.rows));
      model.train();
    }
    for (int step = 0; step < how.averages_from + 2 * kRecorded; ++step) {
      net->far->averages = step >= how.averages_from;
      if (refusal<std::exception>([&] { train(batch_of(step, how.rows)); }) != "accepted" &&
          rank() == 0) {
        found.refused.push_back(step);
      }
    }
    if (rank() == 0) found.replayed = replayed();
    if (rank() == 1) found.mean = net->far->mean.clone();
    found.known.at(static_cast<std::size_t>(rank())) =
        Rank::current().server().modules().any_in_order();
  };
  run_local(3, rank_main, config, how.run);
  return found;
}

Tensor mean_of_one_process(const Discovery& how) {
  auto mean = torch::zeros({3}, torch::kDouble);
  for (int step = how.averages_from; step < how.averages_from + 2 * kRecorded; ++step) {
    for (const auto& x : batch_of(step, how.rows).chunk(kInOrder)) mean.lerp_(x.mean(0), 0.1);
  }
  return mean;
}

/// Only its owner sees it: the others must be told, before steps are replayed or calls promised.
TEST(StaticMode, AllRanksLearnThatMicrobatchesEnterAModuleInOrder) {
  for (const auto mode : {Mode::kPromised, Mode::kStatic, Mode::kFast}) {
    for (auto how : {Discovery{.evaluates_first = true}, Discovery{.skip_tracing = true},
                     Discovery{.averages_from = kLater}}) {
      how.mode = mode;
      how.run.random_order = false;  // else the step in which it is found may be refused
      const auto found = discover(how);
      EXPECT_THAT(found.refused, testing::IsEmpty());
      EXPECT_THAT(found.known, testing::Each(true));
      EXPECT_TRUE(at::equal(found.mean, mean_of_one_process(how)));
      if (mode == Mode::kPromised || how.averages_from == 0) {
        EXPECT_EQ(found.replayed, 0u);
      } else {
        EXPECT_GE(found.replayed, static_cast<std::uint64_t>(kLater - kRecorded));
        EXPECT_LE(found.replayed, static_cast<std::uint64_t>(kLater - kRecorded + 2));
      }
    }
  }
}

/// Microbatches of a replayed step came in another order than theirs, since large tensors may
/// overtake each other. Later steps are not replayed, and keep it.
TEST(StaticMode, AStepThatFindsItTooLateIsRefusedOnce) {
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto found = discover({.averages_from = kLater, .rows = 400, .run = {.seed = seed}});
    EXPECT_THAT(found.refused, testing::Each(testing::Le(kLater + 1))) << seed;
    EXPECT_LE(found.refused.size(), 1u) << seed;
    EXPECT_THAT(found.known, testing::Each(true)) << seed;
    refused += found.refused.size();
  }
  EXPECT_GT(refused, 0u);
}

}  // namespace static_mode_test
}  // namespace smp
