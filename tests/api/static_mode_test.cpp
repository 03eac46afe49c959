// Static and fast mode: steps without control messages compute the same bits, whatever way code
// takes (docs/design.md, Static mode).
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "api/far_model.h"
#include "api/runtime.h"
#include "api/static_mode_testing.h"
#include "api/two_ranks.h"

namespace smp {
namespace static_mode_test {

std::uint64_t control_messages() {
  return Runtime::current().server().core().port.control_messages();
}

// ---- the same bits -----------------------------------------------------------------------------

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

constexpr int kMicrobatches = 8;

/// What one training does.
struct Program {
  std::function<Tensor(NetImpl& net, Tensor x, int step, int microbatch)> way;
  std::function<Tensor(int step)> batch = [](int) { return rows(kMicrobatches); };
};

const Program kStraight{[](NetImpl& net, Tensor x, int, int) {
  for (auto& piece : net.pieces) x = piece(x);
  return x;
}};

/// The same numbers for a step's microbatch in every training; kMicrobatches: for the step itself.
class Dice {
 public:
  Dice(int step, int microbatch) : random_(static_cast<unsigned>(1 + 64 * step + microbatch)) {
    random_.discard(3);
  }
  std::size_t below(unsigned n) { return static_cast<std::size_t>(random_() / 7 % n); }
  std::int64_t up_to(std::int64_t n) {
    return 1 + static_cast<std::int64_t>(below(static_cast<unsigned>(n)));
  }

 private:
  std::minstd_rand random_;
};

Tensor of_the_other_type(const Tensor& x) {
  return x.to(x.scalar_type() == torch::kDouble ? torch::kFloat : torch::kDouble);
}

/// Whom it calls, how often, with how many rows of which dtype, and what it uses: another one in
/// every step and microbatch. Rows and dtype are the same in all steps that are recorded, so that
/// others come as a surprise.
Tensor way_by_chance(NetImpl& net, Tensor x, int step, int microbatch) {
  Dice dice(step, microbatch);
  const bool surprises = step >= kRecorded;
  if (surprises && dice.below(4) == 0) x = x.narrow(0, 0, dice.up_to(x.size(0)));
  if (surprises && dice.below(4) == 0) x = of_the_other_type(x);
  Tensor aside = x;
  for (auto calls = dice.below(6); calls > 0; --calls) {
    switch (dice.below(5)) {
      case 0:
        aside = net.pieces[dice.below(kPieces)](aside);
        break;
      case 1:
        x = x + aside;
        break;
      case 2:
        net.pieces[dice.below(kPieces)](x);
        break;  // nobody uses what it returns
      case 3:
        if (surprises) aside = of_the_other_type(aside);
        break;
      default:
        x = net.pieces[dice.below(kPieces)](x);
    }
  }
  return x + 0 * net.pieces[0]->linear->weight.sum();
}

/// Every other one is not like those of the steps that are recorded.
Tensor batch_by_chance(int step) {
  Dice dice(step, kMicrobatches);
  if (step < kRecorded || dice.below(2) == 0) return kStraight.batch(step);
  const auto batch = rows(kMicrobatches * dice.up_to(3));
  return dice.below(2) == 0 ? batch : of_the_other_type(batch);
}

const Program kByChance{way_by_chance, batch_by_chance};

struct Trained {
  std::map<std::string, Tensor> parameters;
  std::vector<double> losses;
  std::uint64_t replayed = 0;                   // steps
  std::vector<std::uint64_t> control_messages;  // of all ranks, by step

  /// In the steps from `first` on.
  std::uint64_t control_messages_from(int first) const {
    return std::accumulate(control_messages.begin() + first, control_messages.end(),
                           std::uint64_t{0});
  }
};

/// Piece i lives on rank i modulo `ranks`, the body on rank 0.
Trained train(Mode mode, int ranks, int steps, const Program& program, std::uint64_t seed = 1,
              const char* pipeline = "interleaved") {
  Trained trained;
  trained.control_messages.resize(static_cast<std::size_t>(steps));
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
      auto loss = program.way(*net, x, step, number[0].item<int>()).square().mean();
      model.backward(loss);
      return loss.detach().to(torch::kDouble);
    });
    for (; step < steps; ++step) {
      const auto before = control_messages();
      optimizer.zero_grad();
      const auto batch = program.batch(step);
      const auto numbers =
          torch::arange(kMicrobatches).repeat_interleave(batch.size(0) / kMicrobatches);
      const auto loss = run(batch, numbers).reduce_mean();
      if (rank() == 0) trained.losses.push_back(loss.item<double>());
      optimizer.step();
      trained.control_messages[static_cast<std::size_t>(step)] += control_messages() - before;
    }
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
    const auto dynamic = train(Mode::kRelayed, ranks, kSteps, kStraight);
    const auto repeated = train(Mode::kStatic, ranks, kSteps, kStraight);
    EXPECT_EQ(dynamic.replayed, 0u);
    EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
    // ForwardDone and MicrobatchDone to each rank and of each microbatch; FinishGradients there and
    // back.
    EXPECT_EQ(
        dynamic.control_messages_from(kRecorded),
        static_cast<std::uint64_t>((kSteps - kRecorded) * (ranks - 1) * (2 * kMicrobatches + 2)));
    EXPECT_EQ(repeated.control_messages_from(kRecorded), 0u);
    expect_same_bits(repeated, dynamic);
  }
}

/// Whoever makes a tensor knows by then where it will go, and releases travel along.
TEST(FastMode, NeedsNoControlMessagesEither) {
  constexpr int kSteps = 12;
  for (const int ranks : {2, 3, 4}) {
    const auto promised = train(Mode::kPromised, ranks, kSteps, kStraight);
    const auto fast = train(Mode::kFast, ranks, kSteps, kStraight);
    EXPECT_EQ(fast.control_messages_from(kRecorded), 0u) << ranks;
    expect_same_bits(fast, promised);
  }
}

/// Microbatch 3 leaves p2 out, from some step on.
constexpr int kBranches = kRecorded + 2;
const Program kBranch{[](NetImpl& net, Tensor x, int step, int microbatch) {
  for (std::size_t i = 0; i < kPieces; ++i) {
    if (i != 2 || microbatch != 3 || step < kBranches) x = net.pieces[i](x);
  }
  return x;
}};

/// What comes before a branch cannot know which way its result will go: that is asked for. Behind
/// it all is known again.
TEST(FastMode, TellsOfAWayThatNoStepTookBeforeAndRecordsIt) {
  constexpr int kSteps = kBranches + 5;
  const auto relayed = train(Mode::kRelayed, 4, kSteps, kBranch);
  testing::internal::CaptureStderr();
  const auto fast = train(Mode::kFast, 4, kSteps, kBranch);
  const auto told = testing::internal::GetCapturedStderr();
  const auto line = "rank 0: static_mode: microbatch 3 of step " + std::to_string(kBranches + 1) +
                    " calls module 'p3' where no step before did";
  EXPECT_THAT(told, testing::HasSubstr(line));
  EXPECT_EQ(told.find("where no step"), told.rfind("where no step")) << told;
  expect_same_bits(fast, relayed);
  EXPECT_EQ(fast.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
  const std::vector<std::uint64_t> before(fast.control_messages.begin() + kRecorded,
                                          fast.control_messages.begin() + kBranches);
  const std::vector<std::uint64_t> after(fast.control_messages.begin() + kBranches,
                                         fast.control_messages.end());
  EXPECT_THAT(before, testing::Each(0u));
  EXPECT_THAT(after, testing::Each(testing::AllOf(testing::Ge(1u), testing::Le(3u))));
}

TEST(StaticMode, ComputesTheSameBitsInEveryMode) {
  constexpr int kSteps = 20;
  for (const int ranks : {2, 4}) {
    const auto relayed = train(Mode::kRelayed, ranks, kSteps, kStraight);
    for (const auto mode : {Mode::kPromised, Mode::kStatic, Mode::kFast}) {
      for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        expect_same_bits(train(mode, ranks, kSteps, kStraight, seed), relayed);
      }
    }
  }
}

/// Every microbatch calls others than the one before, and many bring other rows and another dtype:
/// ten thousand changes of control flow for each mode.
TEST(StaticMode, StaysRightWhateverWayCodeTakes) {
  constexpr int kSteps = 10'000 / kMicrobatches;
  const auto one_process = train(Mode::kRelayed, 1, kSteps, kByChance);
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    const auto repeated = train(mode, 3, kSteps, kByChance);
    EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
    expect_same_bits(repeated, one_process);
  }
}

constexpr const char* kWindows[] = {"1f1b", "zero_bubble"};

/// By its backward requests a rank sees which microbatches have ended.
TEST(StaticMode, NeedsNoControlMessagesUnderWindowsEither) {
  constexpr int kSteps = kRecorded + 6;
  for (const char* pipeline : kWindows) {
    const auto dynamic = train(Mode::kPromised, 3, kSteps, kStraight, 1, pipeline);
    EXPECT_GT(dynamic.control_messages_from(kRecorded), 0u);
    for (const auto mode : {Mode::kStatic, Mode::kFast}) {
      const auto repeated = train(mode, 3, kSteps, kStraight, 1, pipeline);
      EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded)) << pipeline;
      EXPECT_EQ(repeated.control_messages_from(kRecorded), 0u) << pipeline;
      expect_same_bits(repeated, dynamic);
    }
  }
}

/// Microbatches leave out ranks, whose windows wait for them all the same.
TEST(StaticMode, IsRightUnderWindowsWhateverWayCodeTakes) {
  constexpr int kSteps = kRecorded + 60;
  for (const char* pipeline : kWindows) {
    const auto dynamic = train(Mode::kPromised, 3, kSteps, kByChance, 1, pipeline);
    for (const auto mode : {Mode::kStatic, Mode::kFast}) {
      const auto repeated = train(mode, 3, kSteps, kByChance, 1, pipeline);
      EXPECT_EQ(repeated.replayed, static_cast<std::uint64_t>(kSteps - kRecorded)) << pipeline;
      expect_same_bits(repeated, dynamic);
    }
  }
}

/// From some step on a result that needs a gradient outlives its microbatch, and so does the record
/// on the rank that made it.
TEST(StaticMode, DoesNotWaitUnderWindowsForRecordsThatTheProgramKeeps) {
  std::vector<Tensor> kept;
  const Program keeps{[&kept](NetImpl& net, Tensor x, int step, int) {
    for (auto& piece : net.pieces) x = piece(x);
    if (step >= kRecorded + 2) kept.push_back(net.pieces[1](x));
    return x;
  }};
  constexpr int kSteps = kRecorded + 5;
  const auto dynamic = train(Mode::kPromised, 3, kSteps, keeps, 1, "1f1b");
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    kept.clear();
    expect_same_bits(train(mode, 3, kSteps, keeps, 1, "1f1b"), dynamic);
  }
  kept.clear();
}

/// Where neither members nor the program show them.
std::vector<Tensor> hidden_results;
bool hides_results = false;

/// On one rank, its piece on another, which it calls a second time.
struct HoarderImpl : torch::nn::Module {
  HoarderImpl() : piece(register_module("piece", Piece())) {}
  Tensor forward(const Tensor& x) {
    auto y = piece(x);
    if (hides_results) hidden_results.push_back(piece(y));
    return y;
  }
  Piece piece;
};
SMP_MODULE(Hoarder);

}  // namespace static_mode_test
template <>
inline constexpr bool private_state_v<static_mode_test::HoarderImpl> = true;
namespace static_mode_test {

struct HoarderNetImpl : torch::nn::Module {
  HoarderNetImpl()
      : hoarder(register_module("hoarder", Hoarder())), last(register_module("last", Piece())) {}
  Hoarder hoarder;
  Piece last;
};
TORCH_MODULE(HoarderNet);

/// Nobody but the hoarder's rank knows what the rank that it calls must keep, and that one is asked
/// for a backward by rank 0, which tells it nothing therefore.
TEST(StaticMode, DoesNotWaitUnderWindowsForRecordsThatNobodySees) {
  constexpr int kHides = kRecorded + 2, kSteps = kHides + 3;
  const auto losses = [](Mode mode) {
    std::vector<double> all;
    const auto rank_main = [&] {
      torch::manual_seed(5);
      HoarderNet net;
      DistributedModel model(net);
      model.set_partition("", 0);
      model.set_partition("hoarder", 1);
      model.set_partition("hoarder.piece", 2);
      model.set_partition("last", 2);
      auto run = smp::step([&](const Tensor& x) {
        auto loss = net->last(net->hoarder(x)).sum();
        model.backward(loss);
        return loss;
      });
      for (int step = 0; step < kSteps; ++step) {
        hides_results = step == kHides;
        const auto loss = run(rows(kMicrobatches)).reduce_mean().item<double>();
        if (rank() == 0) all.push_back(loss);
      }
      if (rank() == 0) EXPECT_EQ(replayed(), mode == Mode::kPromised ? 0u : kSteps - kRecorded);
    };
    auto config = config_of(mode, kMicrobatches);
    config.pipeline = "1f1b";
    config.abort_seconds = 20;
    run_local(3, rank_main, config, {.seed = 1});
    hidden_results.clear();
    return all;
  };
  const auto dynamic = losses(Mode::kPromised);
  EXPECT_EQ(losses(Mode::kStatic), dynamic);
  EXPECT_EQ(losses(Mode::kFast), dynamic);
}

/// Control messages of all ranks in each of the replayed steps, which only evaluate, on 3 ranks. No
/// request follows with which rank 1 could be told that its result was passed on.
std::vector<std::uint64_t> messages_of_evaluations(Mode mode, const char* pipeline) {
  constexpr int kSteps = kRecorded + 3;
  std::vector<std::uint64_t> messages(kSteps);
  const auto rank_main = [&] {
    torch::manual_seed(5);
    Net net;
    DistributedModel model(net);
    model.set_partition("", 0);
    for (int i = 0; i < kPieces; ++i) model.set_partition("p" + std::to_string(i), i % 3);
    net->eval();
    auto run = smp::step([&](const Tensor& x) {
      const at::NoGradGuard none;
      return net->pieces[2](net->pieces[1](x)).sum();
    });
    std::vector<double> sums;
    for (auto& of_step : messages) {
      const auto before = control_messages();
      sums.push_back(run(rows(kMicrobatches)).reduce_mean().item<double>());
      of_step += control_messages() - before;
    }
    EXPECT_THAT(sums, testing::Each(testing::Eq(sums[0])));
    EXPECT_EQ(replayed(), rank() == 0 ? 3u : 0u);
  };
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = pipeline;
  run_local(3, rank_main, config, {.seed = 1});
  return {messages.begin() + kRecorded, messages.end()};
}

/// It comes unasked once.
TEST(FastMode, PassesAResultOnToTwoRequestsOfOneRank) {
  const Program twice{[](NetImpl& net, const Tensor& x, int, int) {
    const auto y = net.pieces[1](x);
    const auto first = net.pieces[2](y), second = net.pieces[2](y);
    return net.pieces[4](first) + net.pieces[4](second);
  }};
  constexpr int kSteps = kRecorded + 4;
  const auto fast = train(Mode::kFast, 3, kSteps, twice);
  expect_same_bits(fast, train(Mode::kRelayed, 3, kSteps, twice));
  EXPECT_EQ(fast.control_messages_from(kRecorded), 4u * kMicrobatches) << "of the second";
}

TEST(FastMode, EvaluatesWithoutControlMessages) {
  EXPECT_THAT(messages_of_evaluations(Mode::kFast, "interleaved"), testing::Each(0u));
}

/// No backward request says that a microbatch has ended, so both ranks are told of each.
TEST(StaticMode, TellsRanksUnderWindowsWhatHasEndedIfNothingElseDoes) {
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    EXPECT_THAT(messages_of_evaluations(mode, "1f1b"), testing::Each(2u * kMicrobatches));
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

}  // namespace static_mode_test
}  // namespace smp
