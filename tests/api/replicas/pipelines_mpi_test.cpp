// Two pipelines of two ranks side by side over MPI, and one on the last two ranks of four: as one
// process.
#include <gtest/gtest.h>

#include "api/session/start.h"
#include "fiber/scheduler.h"
#include "support/own_mpi.h"
#include "zoo/differential.h"

namespace smp::zoo {
namespace pipelines_mpi_test {

class PipelinesOverMpi : public testing::TestWithParam<const char*> {};

/// @param only  number of the pipeline that trains; -1: all of them
void expect_as_in_one_process(const std::string& placement, int only) {
  std::vector<std::pair<Case, Trace>> references;
  for (auto& c : all_cases()) {
    if (!c.random) references.emplace_back(c, train_in_one_process(c));
  }
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = zoo_config("interleaved");
  config.pipeline_parallel_degree = 2;
  config.placement_strategy = placement;
  const auto session = start(argc, argv, config, {.independent_pipelines = true});
  if (only >= 0 && rdp_rank() != only) return;
  for (const auto& [c, reference] : references) {
    SCOPED_TRACE(c.name);
    expect_equal(train_distributed(c, random_placement(c, pp_size(), 17)), reference, 1e-12);
  }
}

TEST_P(PipelinesOverMpi, SideBySide) { expect_as_in_one_process(GetParam(), -1); }

TEST_P(PipelinesOverMpi, OnTheLastRanksOnly) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  expect_as_in_one_process(GetParam(), size / 2 - 1);
}

INSTANTIATE_TEST_SUITE_P(Placements, PipelinesOverMpi, testing::Values("cluster", "spread"));

/// Nothing of it is used any more: ranks sleep in memory that they share.
TEST(SessionsOverMpi, StartAfterOneThatRanksDidNotAgreeOn) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  int own = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &own);
  auto config = zoo_config("interleaved");
  config.pipeline_parallel_degree = 2;
  config.microbatches = own == 0 ? 2 : 3;
  EXPECT_THROW(start(argc, argv, config, {}), UsageError);
  static constexpr fiber::WaitReason kTest{"the test"};
  fiber::Scheduler::instance().sleep_for(20 * base::kMillisecond, kTest);
  config.microbatches = 2;
  const auto session = start(argc, argv, config, {});
  fiber::Scheduler::instance().sleep_for(20 * base::kMillisecond, kTest);
  barrier();
}

}  // namespace pipelines_mpi_test
}  // namespace smp::zoo
