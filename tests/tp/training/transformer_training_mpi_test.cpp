// The same over MPI: tp 2, alone, with two replicas or two stages, in both layouts.
#include "support/own_mpi.h"
#include "tp/training/transformer_training.h"

namespace smp::tp {
namespace transformer_training_mpi_test {

using namespace transformer_training;

void expect_as_one_process(const char* layout, int pp) {
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks < 2 * pp) GTEST_SKIP() << "needs " << 2 * pp << " ranks";
  const bool before = false;
  const auto plain = train_plain(before);
  static int argc = 0;
  static char* argv[] = {nullptr};
  Config config;
  config.tensor_parallel_degree = 2;
  config.pipeline_parallel_degree = pp;
  config.optimize = layout;
  config.microbatches = 2;
  config.plan_cache = "off";
  const auto session = init(argc, argv, config);
  ASSERT_EQ(tp_size(), 2);
  train_and_compare(plain, before);
}

TEST(TransformerTrainingOverMpi, OfLayoutSpeed) { expect_as_one_process("speed", 1); }
TEST(TransformerTrainingOverMpi, OfLayoutMemory) { expect_as_one_process("memory", 1); }
TEST(TransformerTrainingOverMpi, OfLayoutSpeedInStages) { expect_as_one_process("speed", 2); }
TEST(TransformerTrainingOverMpi, OfLayoutMemoryInStages) { expect_as_one_process("memory", 2); }

}  // namespace transformer_training_mpi_test
}  // namespace smp::tp
