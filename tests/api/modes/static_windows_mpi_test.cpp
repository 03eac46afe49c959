// Windows under static mode in a job of processes: one that would stay shut for ever opens after a
// second without progress, when pp_rank 0 tells which microbatches have ended (docs/design.md,
// Static mode).
#include <gmock/gmock.h>

#include <cstdint>
#include <vector>

#include "api/modes/static_mode_testing.h"
#include "api/state/hoarder.h"
#include "support/own_mpi.h"

namespace smp {
namespace static_mode_test {
namespace {

/// Two steps stand still; from the third on pp_rank 0 tells at once.
constexpr int kHides = kRecorded + 2, kSteps = kHides + 4;

HoarderSteps train_in_session(Mode mode) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = config_of(mode, kMicrobatches);
  config.pipeline = "1f1b";
  config.abort_seconds = 60;
  const auto session = init(argc, argv, config);
  auto trained = train_hoarder(kSteps, kHides);
  if (rank() == 0) {
    EXPECT_EQ(replayed(), mode == Mode::kPromised ? 0u : kSteps - kRecorded);
  }
  forget_what_is_hidden();
  return trained;
}

TEST(StaticModeOverMpi, OpensAWindowThatNobodySeesHasEnded) {
  int ranks = 0, rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (ranks < 3) GTEST_SKIP() << "three ranks take part";
  const auto dynamic = train_in_session(Mode::kPromised);
  for (const auto mode : {Mode::kStatic, Mode::kFast}) {
    const auto repeated = train_in_session(mode);
    EXPECT_EQ(repeated.losses, dynamic.losses);
    if (rank != 0) continue;
    const auto told = [&](int step) {
      return repeated.control_messages[static_cast<std::size_t>(step)];
    };
    EXPECT_EQ(told(kHides - 1), told(kRecorded)) << "ranks that take no part are told";
    for (int step = kHides; step < kSteps; ++step) {
      EXPECT_GT(told(step), told(kRecorded)) << step << ": nothing stood still";
    }
  }
}

}  // namespace
}  // namespace static_mode_test
}  // namespace smp
