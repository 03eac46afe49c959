// Static and fast mode under schedules that limit the microbatches of a rank: a window opens
// without a message that says so (docs/design.md, Static mode).
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "api/modes/static_mode_testing.h"
#include "api/state/hoarder.h"

namespace smp {
namespace static_mode_test {

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

/// No backward request says that a microbatch has ended, so both ranks are told of each.
TEST(StaticMode, TellsRanksUnderWindowsWhatHasEndedIfNothingElseDoes) {
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    EXPECT_THAT(messages_of_evaluations(mode, "1f1b"), testing::Each(2u * kMicrobatches));
  }
}

/// Nobody but the hoarder's rank knows what the rank that it calls must keep, and that one is asked
/// for a backward by rank 0, which tells it nothing therefore.
TEST(StaticMode, DoesNotWaitUnderWindowsForRecordsThatNobodySees) {
  constexpr int kHides = kRecorded + 2, kSteps = kHides + 3;
  const auto losses = [](Mode mode) {
    std::vector<double> all;
    auto config = config_of(mode, kMicrobatches);
    config.pipeline = "1f1b";
    config.abort_seconds = 20;
    run_local(3,
              [&] {
                auto own = train_hoarder(kSteps, kHides).losses;
                if (rank() != 0) return;
                all = std::move(own);
                EXPECT_EQ(replayed(), mode == Mode::kPromised ? 0u : kSteps - kRecorded);
              },
              config, {.seed = 1});
    forget_what_is_hidden();
    return all;
  };
  const auto dynamic = losses(Mode::kPromised);
  EXPECT_EQ(losses(Mode::kStatic), dynamic);
  EXPECT_EQ(losses(Mode::kFast), dynamic);
}

}  // namespace static_mode_test
}  // namespace smp
