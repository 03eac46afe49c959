// The same over MPI: tp 2 alone, with two stages, with two replicas, and tp over all ranks.
#include "support/own_mpi.h"
#include "tp/sliced_training.h"

namespace smp::tp {
namespace sliced_training_mpi_test {

int ranks_started() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void expect_as_in_one_process(int tp, int pp, bool prescaled = false) {
  const auto reference = train_in_one_process(ranks_started() / pp / (prescaled ? tp : 1));
  static int argc = 0;
  static char* argv[] = {nullptr};
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  config.prescaled_batch = prescaled;
  const auto session = init(argc, argv, config);
  ASSERT_EQ(tp_size(), tp);
  ASSERT_EQ(pp_size(), pp);
  auto names = expect_equal(train_sliced(), reference, tp_rank(), tp_size());
  std::set<std::string> all;
  for (const int member : group(Group::kPp)) {
    const std::vector<std::string> own(names.begin(), names.end());
    const auto part = broadcast(own, member, Group::kPp);
    all.insert(part.begin(), part.end());
  }
  EXPECT_EQ(all.size(), reference.tensors.size()) << "each tensor is on some stage";
}

TEST(SlicedTrainingOverMpi, OfTwoTensorRanks) { expect_as_in_one_process(2, 1); }
TEST(SlicedTrainingOverMpi, OfAsManyTensorRanksAsThereAre) {
  expect_as_in_one_process(ranks_started(), 1);
}
TEST(SlicedTrainingOverMpi, OfTwoTensorRanksInStages) {
  expect_as_in_one_process(2, ranks_started() / 2);
}
TEST(SlicedTrainingOverMpi, OfOnePrescaledBatch) {
  expect_as_in_one_process(ranks_started(), 1, true);
}
TEST(SlicedTrainingOverMpi, OfPrescaledBatchesInStages) {
  expect_as_in_one_process(2, ranks_started() / 2, true);
}
TEST(SlicedTrainingOverMpi, OfPrescaledBatchesOfReplicas) { expect_as_in_one_process(2, 1, true); }

}  // namespace sliced_training_mpi_test
}  // namespace smp::tp
