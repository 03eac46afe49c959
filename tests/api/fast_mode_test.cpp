// Fast mode: what a replayed step promises goes where it is needed unasked (docs/design.md, Static
// mode).
#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "api/static_mode_testing.h"

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

}  // namespace static_mode_test
}  // namespace smp
