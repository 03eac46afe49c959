// d2d/job/abort_mpi_mpi_test.cpp: a process ends though its launcher does not answer. A copy of
// rank 0 plays it, whose MPI_Abort waits for ever.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/clock.h"
#include "d2d/job/shared_mpi_session.h"
#include "d2d/wires/mpi/mpi_communicator.h"

namespace smp::d2d {
namespace {

bool launcher_is_silent = false;
bool launcher_tells_code = false;

}  // namespace
}  // namespace smp::d2d

extern "C" int MPI_Abort(MPI_Comm communicator, int code) {
  while (smp::d2d::launcher_is_silent) ::pause();
  if (smp::d2d::launcher_tells_code) ::_exit((code & 0xff) == 0 ? 0 : 42);  // as mpirun ends
  return PMPI_Abort(communicator, code);
}

namespace smp::d2d {
namespace {

TEST(AbortMpi, EndsTheProcessWhoeverLaunchedIt) {
  if (shared_mpi_session().rank() != GlobalRank(0)) return;
  const base::SteadyClock clock;
  const auto start = clock.now();
  const auto child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    launcher_is_silent = true;
    abort_mpi(MPI_COMM_WORLD, 1);
  }
  int status = 0;
  pid_t over = 0;
  while (over == 0 && clock.now() - start < 30 * base::kSecond) {
    over = ::waitpid(child, &status, WNOHANG);
    ::usleep(10'000);
  }
  if (over == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  EXPECT_EQ(over, child) << "it waited for its launcher";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_GE(clock.now() - start, 4 * base::kSecond) << "which it gives some time";
}

/// mpirun would end with 0, as if the job had succeeded.
TEST(AbortMpi, NeverEndsAJobWithACodeOfSuccess) {
  if (shared_mpi_session().rank() != GlobalRank(0)) return;
  for (const int code : {0, 1, 255, 256, -256, 512}) {
    const auto child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      launcher_tells_code = true;
      abort_mpi(MPI_COMM_WORLD, code);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << code << " gives " << status;
  }
}

}  // namespace
}  // namespace smp::d2d
