// api/model/settings_mpi_test.cpp: settings that differ between ranks are named on all of them
// before anything is connected by them, and the next session works.
#include <gmock/gmock.h>
#include <mpi.h>

#include "smp/smp.h"
#include "support/own_mpi.h"
#include "support/refusal.h"

namespace smp {
namespace settings_mpi_test {

using testing::AllOf;
using testing::HasSubstr;

int own_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

Session start(const Config& config) {
  static int argc = 0;
  static char* argv[] = {nullptr};
  return init(argc, argv, config);
}

std::string refused(const Config& config) {
  return refusal([&] { static_cast<void>(start(config)); });
}

/// Ranks that connect differently would wait for each other.
TEST(SettingsOfRanks, ThatDecideHowTheyAreConnectedAreComparedFirst) {
  Config config;
  config.transport = own_rank() == 0 ? "mpi" : "auto";
  EXPECT_THAT(
      refused(config),
      AllOf(
          HasSubstr("transport: \"mpi\" (Config in code) on rank 0, \"auto\" (default) on rank 1"),
          HasSubstr("give every rank the same flags")));
}

TEST(SettingsOfRanks, ThatDifferAreAllNamed) {
  Config config;
  config.seed = own_rank() == 1 ? 5 : 4;
  config.microbatches = own_rank() == 1 ? 2 : 1;
  EXPECT_THAT(
      refused(config),
      AllOf(HasSubstr("seed: 4 (Config in code) on rank 0, 5 (Config in code) on rank 1"),
            HasSubstr("microbatches: 1 (default) on rank 0, 2 (Config in code) on rank 1")));
}

TEST(SettingsOfRanks, ThatAreAlikeWorkAfterwards) {
  auto session = start({});
  EXPECT_EQ(rank(), own_rank());
  barrier();
}

}  // namespace settings_mpi_test
}  // namespace smp
