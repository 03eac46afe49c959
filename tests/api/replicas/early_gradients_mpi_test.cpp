// Gradients that replicas add up while the step still runs, between processes, where messages come
// when they come: pipelines of 1 and 2 stages, as many replicas as fit.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "api/replicas/early_gradients_testing.h"
#include "support/own_mpi.h"

namespace smp::zoo {
namespace early_gradients_mpi_test {

using namespace early_gradients_testing;

int ranks_started() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

Outcome train(const Program& program, bool overlap, double bucket_mb, const char* transport) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  auto config = config_of(program, overlap, bucket_mb);
  config.transport = transport;
  const auto session = init(argc, argv, config);
  Outcome outcome;
  train_rank(program, outcome);
  return outcome;
}

/// Over memory that processes share, and over MPI. @return buckets averaged early on this rank
std::uint64_t expect_bits_of_late(const Program& program) {
  const auto expected = train(program, false, 2e-3, "auto");
  EXPECT_EQ(expected.early, 0u);
  std::uint64_t early = 0;
  for (const auto* transport : {"auto", "mpi"}) {
    SCOPED_TRACE(transport);
    for (const double bucket_mb : {1e-6, 2e-3}) {
      const auto own = train(program, true, bucket_mb, transport);
      expect_same(own.gradients, expected.gradients);
      expect_same(own.values, expected.values);
      early = own.early;
    }
  }
  return early;
}

class EarlyGradientsOverMpi : public testing::TestWithParam<int> {
 protected:
  EarlyGradientsOverMpi() { program.stages = GetParam(); }
  Program program;
};
INSTANTIATE_TEST_SUITE_P(Stages, EarlyGradientsOverMpi, testing::Values(1, 2));

TEST_P(EarlyGradientsOverMpi, HaveTheBitsOfLateOnes) {
  const auto early = expect_bits_of_late(program);
  if (ranks_started() / program.stages > 1) {
    EXPECT_GT(early, 0u);
  }
}

TEST_P(EarlyGradientsOverMpi, MayBeExpectedInVain) {
  program.with_rare = [](int step, int replica) { return step != 3 || replica == 0; };
  expect_bits_of_late(program);
  program.with_rare = [](int step, int replica) { return (step + replica) % 2 == 0; };
  expect_bits_of_late(program);
}

TEST_P(EarlyGradientsOverMpi, OfAFailedStepAreForgotten) {
  if (ranks_started() / program.stages == 1) GTEST_SKIP() << "one replica";
  std::vector<int> throws_left(static_cast<std::size_t>(ranks_started()));
  fail_in_last_backward(program, throws_left, {2, 4});
  EXPECT_GT(expect_bits_of_late(program), 0u);
}

/// Of what each rank owns, and the values that all get from there.
TEST_P(EarlyGradientsOverMpi, OfOwnersHaveTheBitsOfLateOnesAndOfReplicasThatAllStep) {
  const auto plain = train(program, true, 2e-3, "auto");
  program.configure = [](Config& config) { config.shard_optimizer_state = true; };
  const auto early = expect_bits_of_late(program);
  if (ranks_started() / program.stages > 1) {
    EXPECT_GT(early, 0u);
  }
  expect_same(train(program, true, 2e-3, "auto").values, plain.values);
}

TEST_P(EarlyGradientsOverMpi, GoThroughHooks) {
  program.prepare = [](Replica& replica) {
    replica.model.register_comm_hook(bf16_compress_hook());
  };
  const auto late = train(program, false, 2e-3, "auto"), own = train(program, true, 2e-3, "auto");
  expect_same(own.values, late.values);
}

}  // namespace early_gradients_mpi_test
}  // namespace smp::zoo
