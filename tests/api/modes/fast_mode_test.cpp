// Fast mode: what a replayed step promises goes where it is needed unasked (docs/design.md, Static
// mode).
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/far_model.h"
#include "api/modes/static_mode_testing.h"

namespace smp {
namespace static_mode_test {

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

/// It comes once for both.
TEST(FastMode, PassesAResultOnToTwoRequestsOfOneRank) {
  const Program twice{[](NetImpl& net, const Tensor& x, int, int) {
    const auto y = net.pieces[1](x);
    const auto first = net.pieces[2](y), second = net.pieces[2](y);
    return net.pieces[4](first) + net.pieces[4](second);
  }};
  constexpr int kSteps = kRecorded + 4;
  const auto fast = train(Mode::kFast, 3, kSteps, twice);
  expect_same_bits(fast, train(Mode::kRelayed, 3, kSteps, twice));
  EXPECT_EQ(fast.control_messages_from(kRecorded), 0u);
}

/// More of one microbatch than the next request can name.
TEST(FastMode, LetsGoOfManyResults) {
  run_local(2,
            [] {
              Net net;
              DistributedModel model(net);
              model.set_partition("", 0);
              model.set_partition("p1", 1);
              int calls = 2;
              auto run = smp::step([&](Tensor x) {
                const at::NoGradGuard none;
                for (int i = 0; i < calls; ++i) x = net->pieces[1](x);
                return x.sum();
              });
              for (int step = 0; step < kRecorded; ++step) run(rows(8));
              calls = 4'500;
              run(rows(8));
              EXPECT_EQ(replayed(), rank() == 0 ? 1U : 0U);
            },
            config_of(Mode::kFast, 8), {.seed = 1});
}

/// A hook calls a module of a rank that has not heard that the forward is done.
TEST(FastMode, HooksMayCallModules) {
  const Program hooked{[](NetImpl& net, const Tensor& x, int, int) {
    const auto y = net.pieces[1](x);
    y.register_hook([&net](const Tensor& gradient) {
      const at::AutoGradMode on(true);
      return net.pieces[2](gradient.detach().requires_grad_()).detach();
    });
    return net.pieces[4](net.pieces[2](y));
  }};
  constexpr int kSteps = kRecorded + 4;
  const auto fast = train(Mode::kFast, 3, kSteps, hooked);
  expect_same_bits(fast, train(Mode::kRelayed, 3, kSteps, hooked));
  EXPECT_EQ(fast.replayed, 4U);
}

/// What did not go ahead is asked for, and what did for nobody is dropped. All requests to p2 are
/// made before the body waits for anything, so each names y, whatever order the fibers run in.
TEST(FastMode, PassesAResultOnToAsManyRequestsAsThereAre) {
  const auto requests = [](int step) {
    return step < kRecorded + 3 ? 3 : step < kRecorded + 6 ? 1 : 4;
  };
  const Program some{[=](NetImpl& net, const Tensor& x, int step, int) {
    const auto y = net.pieces[1](x);
    std::vector<Tensor> results;
    for (int i = 0; i < requests(step); ++i) results.push_back(net.pieces[2](y));
    Tensor sum = net.pieces[4](results[0]);
    for (std::size_t i = 1; i < results.size(); ++i) sum = sum + net.pieces[4](results[i]);
    return sum;
  }};
  constexpr int kSteps = kRecorded + 9;
  const auto relayed = train(Mode::kRelayed, 3, kSteps, some);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const auto fast = train(Mode::kFast, 3, kSteps, some, seed);
    expect_same_bits(fast, relayed);
    EXPECT_EQ(fast.replayed, static_cast<std::uint64_t>(kSteps - kRecorded));
    for (int step = kRecorded; step < kSteps; ++step) {
      const bool asks = step == kRecorded + 6;  // for more than the steps before
      EXPECT_EQ(fast.control_messages.at(static_cast<std::size_t>(step)) > 0, asks)
          << "step " << step << ", seed " << seed;
    }
  }
}

/// Keeps its argument for the backward.
struct SavesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return (x * x * weight).sum(); }
  Tensor weight = register_parameter("weight", torch::linspace(-1, 1, 3));
};
SMP_MODULE(Saves);

struct WritesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const at::NoGradGuard none;
    return Tensor(x).add_(1).sum();
  }
};
SMP_MODULE(Writes);

struct SharedInputImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto y = makes(x);
    const auto saved = saves(y);
    return saved + writes(y);
  }
  Piece makes = register_module("makes", Piece());
  Saves saves = register_module("saves", Saves());
  Writes writes = register_module("writes", Writes());
};
SMP_MODULE(SharedInput);

/// Gradients of the weight of SavesImpl and of `makes` in one step after the other.
std::vector<Tensor> gradients_of_shared_input(Mode mode) {
  std::vector<Tensor> gradients;
  run_local(
      3,
      [&] {
        torch::manual_seed(3);
        SharedInput net;
        net->eval();
        DistributedModel model(net);
        for (const auto& [path, stage] :
             {std::pair{"", 0}, {"makes", 1}, {"saves", 2}, {"writes", 2}}) {
          model.set_partition(path, stage);
        }
        auto run = smp::step([&](const Tensor& x) { model.backward(model(x)); });
        for (int step = 0; step < kRecorded + 2; ++step) {
          model.zero_grad();
          run(plain_batch(step));
          const auto own = rank() == 1   ? net->makes->linear->weight.grad()
                           : rank() == 2 ? net->saves->weight.grad()
                                         : Tensor();
          const auto all =
              all_gather(own.defined() ? own.to(torch::kDouble).sum().item<double>() : 0);
          if (rank() == 0) gradients.push_back(torch::tensor(all));
        }
      },
      config_of(mode, kMicrobatches));
  return gradients;
}

/// Each request has a tensor of its own: one may write to it while the other has it saved.
TEST(FastMode, WhoTakesAResultTogetherWithOthersMayWriteToIt) {
  const auto fast = gradients_of_shared_input(Mode::kFast);
  const auto relayed = gradients_of_shared_input(Mode::kRelayed);
  ASSERT_EQ(fast.size(), relayed.size());
  for (std::size_t step = 0; step < fast.size(); ++step) {
    EXPECT_TRUE(torch::equal(fast[step], relayed[step])) << fast[step] << relayed[step];
  }
}

/// Of rank 0, in replayed steps.
std::uint64_t promised_calls(const Config& config) {
  std::uint64_t calls = 0;
  run_local(
      2,
      [&] {
        Net net;
        DistributedModel model(net);
        for (int i = 0; i < kPieces; ++i) model.set_partition("p" + std::to_string(i), i % 2);
        model.set_partition("", 0);
        auto run = smp::step(
            [&](const Tensor& x) { model.backward(net->pieces[3](net->pieces[1](x)).sum()); });
        const auto promised = [] { return Rank::current().server().core().counters.promised; };
        for (int step = 0; step < kRecorded; ++step) run(plain_batch(step));
        const auto before = promised();
        for (int step = 0; step < 3; ++step) run(plain_batch(step));
        if (rank() == 0) calls = promised() - before;
      },
      config);
  return calls;
}

TEST(FastMode, IsWhatStaticModeComesWith) {
  EXPECT_TRUE(Config{.static_mode = true}.fast_mode);
  Config config = config_of(Mode::kFast, kMicrobatches);
  config.fast_mode = Config().fast_mode;
  EXPECT_EQ(promised_calls(config), 3u * kMicrobatches) << "the body needs the last one's at once";
  config.fast_mode = false;
  EXPECT_EQ(promised_calls(config), 0u);
}

TEST(FastMode, EvaluatesWithoutControlMessages) {
  EXPECT_THAT(messages_of_evaluations(Mode::kFast, "interleaved"), testing::Each(0u));
}

}  // namespace static_mode_test
}  // namespace smp
