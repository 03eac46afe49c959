// Static mode: steps without control messages compute the same bits, whatever way code takes, in
// the order of a recorded one (docs/design.md, Static mode).
#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "api/far_model.h"
#include "api/modes/static_mode_testing.h"
#include "api/rank/rank.h"

namespace smp {
namespace static_mode_test {

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

/// Notes what goes first on its rank: the keys of the forwards of four microbatches.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() : weight(register_parameter("weight", torch::ones({3}, torch::kDouble))) {}
  Tensor forward(const Tensor& x) {
    const auto& core = Rank::current().server().core();
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
        StepOptions halves;
        halves.microbatches = 2;
        auto two = smp::step(body, halves);
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
