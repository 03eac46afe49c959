// Static and fast mode: steps without control messages compute the same bits, whatever way code
// takes, and nothing that ranks must know of each other gets lost (docs/design.md, Static mode).
#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "api/far_model.h"
#include "api/runtime.h"
#include "api/two_ranks.h"
#include "server/recorded_steps.h"

namespace smp {
namespace static_mode_test {

using at::Tensor;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kRecorded = server::RecordedSteps::kSteps;

enum class Mode { kRelayed, kPromised, kStatic, kFast };

Config config_of(Mode mode, int microbatches) {
  Config config;
  config.microbatches = microbatches;
  config.plan_cache = "off";
  config.promised_outputs = mode != Mode::kRelayed;
  config.static_mode = mode == Mode::kStatic || mode == Mode::kFast;
  config.fast_mode = mode == Mode::kFast;
  return config;
}

std::uint64_t replayed() { return Runtime::current().server().core().counters.replayed; }
std::uint64_t control_messages() {
  return Runtime::current().server().core().port.control_messages();
}

// ---- the same bits -----------------------------------------------------------------------------

struct PieceImpl : torch::nn::Module {
  PieceImpl() : linear(register_module("linear", torch::nn::Linear(3, 3))) {
    linear->to(torch::kDouble);
  }
  Tensor forward(const Tensor& x) {
    return torch::dropout(linear(x).tanh(), 0.2, is_training()) + x;
  }
  torch::nn::Linear linear;
};
SMP_MODULE(Piece);

constexpr int kPieces = 5;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (auto& piece : pieces) {
      piece = register_module("p" + std::to_string(&piece - pieces.data()), Piece());
    }
  }
  std::array<Piece, kPieces> pieces;
};
TORCH_MODULE(Net);

using Way = std::function<Tensor(NetImpl& net, Tensor x, int step, int microbatch)>;

Tensor straight(NetImpl& net, Tensor x, int, int) {
  for (auto& piece : net.pieces) x = piece(x);
  return x;
}

/// Whom it calls, how often, and what it uses: another one in every step and microbatch.
Tensor by_chance(NetImpl& net, Tensor x, int step, int microbatch) {
  std::minstd_rand random(static_cast<unsigned>(1 + 64 * step + microbatch));
  random.discard(3);
  const auto below = [&](unsigned n) { return static_cast<std::size_t>(random() / 7 % n); };
  Tensor aside = x;
  for (auto calls = below(6); calls > 0; --calls) {
    switch (below(4)) {
      case 0:
        aside = net.pieces[below(kPieces)](aside);
        break;
      case 1:
        x = x + aside;
        break;
      case 2:
        net.pieces[below(kPieces)](x);
        break;  // nobody uses what it returns
      default:
        x = net.pieces[below(kPieces)](x);
    }
  }
  return x + 0 * net.pieces[0]->linear->weight.sum();
}

struct Trained {
  std::map<std::string, Tensor> parameters;
  std::vector<double> losses;
  std::uint64_t replayed = 0;          // steps
  std::uint64_t control_messages = 0;  // of all ranks, in the steps that could be replayed
};

constexpr int kMicrobatches = 8;

/// Piece i lives on rank i modulo `ranks`, the body on rank 0.
Trained train(Mode mode, int ranks, int steps, const Way& way, std::uint64_t seed = 1,
              const char* pipeline = "interleaved") {
  Trained trained;
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Net net;
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int i = 0; i < kPieces; ++i) model.set_partition("p" + std::to_string(i), i % ranks);
    DistributedOptimizer optimizer(
        model, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5)));
    int step = 0;
    auto run = smp::step([&](const Tensor& x, const Tensor& number) {
      auto loss = way(*net, x, step, number.item<int>()).square().mean();
      model.backward(loss);
      return loss.detach();
    });
    std::uint64_t before = 0;
    for (; step < steps; ++step) {
      if (step == kRecorded) before = control_messages();
      optimizer.zero_grad();
      const auto loss = run(rows(kMicrobatches), torch::arange(kMicrobatches)).reduce_mean();
      if (rank() == 0) trained.losses.push_back(loss.item<double>());
      optimizer.step();
    }
    trained.control_messages += control_messages() - before;
    trained.replayed += replayed();
    for (const auto& [name, parameter] : model.local_named_parameters()) {
      trained.parameters[name] = parameter.detach().clone();
    }
  };
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = pipeline;
  run_local(ranks, rank_main, config, {.seed = seed});
  return trained;
}

void expect_same_bits(const Trained& one, const Trained& other) {
  EXPECT_EQ(one.losses, other.losses);
  ASSERT_EQ(one.parameters.size(), 2u * kPieces);
  for (const auto& [name, parameter] : one.parameters) {
    EXPECT_TRUE(at::equal(parameter, other.parameters.at(name))) << name;
  }
}

TEST(StaticMode, NeedsNoControlMessagesAfterFiveSteps) {
  constexpr int kSteps = 12;
  for (const int ranks : {2, 3, 4}) {
    const auto dynamic = train(Mode::kRelayed, ranks, kSteps, straight);
    const auto repeated = train(Mode::kStatic, ranks, kSteps, straight);
    EXPECT_EQ(dynamic.replayed, 0u);
    EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
    // ForwardDone and MicrobatchDone to each rank and of each microbatch; FinishGradients there and
    // back.
    EXPECT_EQ(
        dynamic.control_messages,
        static_cast<std::uint64_t>((kSteps - kRecorded) * (ranks - 1) * (2 * kMicrobatches + 2)));
    EXPECT_EQ(repeated.control_messages, 0u);
    expect_same_bits(repeated, dynamic);
  }
}

TEST(StaticMode, ComputesTheSameBitsInEveryMode) {
  constexpr int kSteps = 20;
  for (const int ranks : {2, 4}) {
    const auto relayed = train(Mode::kRelayed, ranks, kSteps, straight);
    for (const auto mode : {Mode::kPromised, Mode::kStatic, Mode::kFast}) {
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        expect_same_bits(train(mode, ranks, kSteps, straight, seed), relayed);
      }
    }
  }
}

/// Every microbatch calls others than the one before: ten thousand changes of control flow.
TEST(StaticMode, StaysRightWhateverWayCodeTakes) {
  constexpr int kSteps = 10'000 / kMicrobatches / 2;
  const auto relayed = train(Mode::kRelayed, 3, kSteps, by_chance);
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    const auto repeated = train(mode, 3, kSteps, by_chance);
    EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
    expect_same_bits(repeated, relayed);
  }
}

/// Its ranks must be told which microbatches have ended.
TEST(StaticMode, DoesNotReplayStepsUnderWindows) {
  constexpr int kSteps = kRecorded + 8;
  for (const auto& way : {Way(straight), Way(by_chance)}) {
    const auto dynamic = train(Mode::kPromised, 3, kSteps, way, 1, "1f1b");
    const auto repeated = train(Mode::kFast, 3, kSteps, way, 1, "1f1b");
    EXPECT_EQ(repeated.replayed, 0u);
    expect_same_bits(repeated, dynamic);
  }
}

/// Notes what goes first on its rank: the keys of the forwards of four microbatches.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() : weight(register_parameter("weight", torch::ones({3}, torch::kDouble))) {}
  Tensor forward(const Tensor& x) {
    const auto& core = Runtime::current().server().core();
    priorities.clear();
    for (int m = 0; m < 4; ++m) {
      priorities.push_back(core.priority(schedule::Phase::kForward, m));
    }
    return x * weight;
  }
  Tensor weight;
  std::vector<std::int64_t> priorities;
};
SMP_MODULE(Probe);

}  // namespace static_mode_test

template <>
inline constexpr bool private_state_v<static_mode_test::ProbeImpl> = true;  // priorities

namespace static_mode_test {

struct ProbesImpl : torch::nn::Module {
  ProbesImpl() : here(register_module("here", Probe())), there(register_module("there", Probe())) {}
  Tensor forward(const Tensor& x) { return there(here(x)); }
  Probe here, there;
};
SMP_MODULE(Probes);

/// By the rule keys are odd; a recorded step gives them places. On rank 0 all forwards began before
/// any backward, which its body begins, and in the order in which they were computed.
TEST(StaticMode, KeepsToTheOrderOfARecordedStep) {
  constexpr int kSteps = kRecorded + 2;
  run_local(
      2,
      [] {
        Probes net;
        DistributedModel<Probes> model(net);
        model.set_partition("", 0);
        model.set_partition("there", 1);
        auto train = smp::step([&](const Tensor& x) { model.backward(model(x).sum()); });
        auto& own = rank() == 0 ? net->here : net->there;
        for (int step = 0; step < kSteps; ++step) {
          train(rows(4));
          if (step < kRecorded) {
            EXPECT_THAT(own->priorities, testing::ElementsAre(1, 3, 5, 7)) << step;
          } else if (rank() == 0) {
            EXPECT_THAT(own->priorities, testing::ElementsAre(0, 1, 2, 3)) << step;
          } else {
            EXPECT_THAT(own->priorities, testing::Each(testing::Lt(8))) << step;
          }
        }
      },
      config_of(Mode::kStatic, 4));
}

TEST(StaticMode, KeepsAnOrderForEachNumberOfMicrobatches) {
  run_local(
      2,
      [] {
        Probes net;
        DistributedModel<Probes> model(net);
        model.set_partition("", 0);
        model.set_partition("there", 1);
        const auto body = [&](const Tensor& x) { model.backward(model(x).sum()); };
        auto two = smp::step(body, {.microbatches = 2});
        auto four = smp::step(body);
        for (int step = 0; step < kRecorded + 2; ++step) {
          two(rows(4));
          if (step >= kRecorded && rank() == 0) {
            EXPECT_THAT(
                std::vector(net->here->priorities.begin(), net->here->priorities.begin() + 2),
                testing::ElementsAre(0, 1));
          }
          four(rows(4));
          if (step >= kRecorded && rank() == 0) {
            EXPECT_THAT(net->here->priorities, testing::ElementsAre(0, 1, 2, 3));
          }
        }
      },
      config_of(Mode::kStatic, 4));
}

// ---- what ranks must know of each other --------------------------------------------------------

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
                if (rank() == 0) EXPECT_GE(replayed(), 1U);
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
        Runtime::current().server().modules().any_in_order();
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
