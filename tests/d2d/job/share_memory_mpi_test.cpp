// The ranks of a machine see what each of them writes.
#include <gtest/gtest.h>

#include <filesystem>

#include "d2d/job/shared_mpi_session.h"

namespace smp::d2d {
namespace {

TEST(ShareMemory, IsOneForAllRanksOfTheMachine) {
  const auto& mpi = shared_mpi_session();
  const auto ranks = static_cast<std::size_t>(mpi.size());
  const auto memory = mpi.share_memory(ranks);
  ASSERT_TRUE(memory);
  memory->bytes()[mpi.rank().index()] = static_cast<std::byte>(mpi.rank().value() + 1);
  mpi.barrier();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(memory->bytes()[rank], static_cast<std::byte>(rank + 1));
  }
  mpi.barrier();
}

}  // namespace
}  // namespace smp::d2d
