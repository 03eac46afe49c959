// Windows under static mode in a job of processes: one that would stay shut for ever opens after a
// second without progress, when pp_rank 0 tells which microbatches have ended (docs/design.md,
// Static mode).
#include <gmock/gmock.h>

#include <chrono>
#include <vector>

#include "api/hoarder.h"
#include "api/static_mode_testing.h"
#include "support/own_mpi.h"

namespace smp {
namespace static_mode_test {

constexpr int kHides = kRecorded + 2, kSteps = kHides + 4;

std::vector<double> losses_of(Mode mode) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = "1f1b";
  config.abort_seconds = 60;
  const auto session = init(argc, argv, config);
  auto losses = train_hoarder(kSteps, kHides);
  if (rank() == 0) EXPECT_EQ(replayed(), mode == Mode::kPromised ? 0u : kSteps - kRecorded);
  forget_what_is_hidden();
  return losses;
}

TEST(StaticModeOverMpi, OpensAWindowThatNobodySeesHasEnded) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks < 3) GTEST_SKIP() << "three ranks take part";
  using Clock = std::chrono::steady_clock;
  const auto dynamic = losses_of(Mode::kPromised);
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    const auto start = Clock::now();
    EXPECT_EQ(losses_of(mode), dynamic);
    // A step that never stalls shows nothing.
    const std::chrono::duration<double> passed = Clock::now() - start;
    EXPECT_GT(passed.count(), 1);
  }
}

}  // namespace static_mode_test
}  // namespace smp
