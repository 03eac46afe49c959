// The same over MPI: tp 2 alone, with stages, with replicas, with both, and tp over up to 4 ranks.
#include "support/own_mpi.h"
#include "tp/training/sliced_training.h"

namespace smp::tp {
namespace sliced_training_mpi_test {

int ranks_started() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void expect_as_in_one_process(int tp, int pp, bool prescaled = false,
                              const char* placement = "cluster") {
  SCOPED_TRACE(placement);
  const auto reference = train_in_one_process(ranks_started() / pp / (prescaled ? tp : 1));
  static int argc = 0;
  static char* argv[] = {nullptr};
  Config config;
  config.tensor_parallel_degree = tp;
  config.pipeline_parallel_degree = pp;
  config.microbatches = kMicrobatches;
  config.prescaled_batch = prescaled;
  config.placement_strategy = placement;
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

/// The widths of the model can be divided by 4.
int most_tensor_ranks() { return std::min(ranks_started(), 4); }

TEST(SlicedTrainingOverMpi, OfTwoTensorRanks) { expect_as_in_one_process(2, 1); }
TEST(SlicedTrainingOverMpi, OfUpToFourTensorRanks) {
  expect_as_in_one_process(most_tensor_ranks(), 1);
}
TEST(SlicedTrainingOverMpi, OfTwoTensorRanksInStages) {
  expect_as_in_one_process(2, ranks_started() / 2);
}
TEST(SlicedTrainingOverMpi, OfAllThreeDegrees) {
  if (ranks_started() < 8) GTEST_SKIP() << "needs 8 ranks";
  for (const auto* const placement : {"DPT", "TPD", "PTD", "TDP", "PDT", "DTP"}) {
    for (const bool prescaled : {false, true}) {
      expect_as_in_one_process(2, 2, prescaled, placement);
    }
  }
}
TEST(SlicedTrainingOverMpi, OfOnePrescaledBatch) {
  expect_as_in_one_process(most_tensor_ranks(), 1, true);
}
TEST(SlicedTrainingOverMpi, OfPrescaledBatchesInStages) {
  expect_as_in_one_process(2, ranks_started() / 2, true);
}
TEST(SlicedTrainingOverMpi, OfPrescaledBatchesOfReplicas) { expect_as_in_one_process(2, 1, true); }

}  // namespace sliced_training_mpi_test
}  // namespace smp::tp
