// Steps that all ranks of a job take, or none.
#include "d2d/job/joint_step.h"

#include <gmock/gmock.h>

#include "d2d/job/shared_mpi_session.h"
#include "smp/error.h"
#include "support/refusal.h"

namespace smp::d2d {
namespace joint_step_mpi_test {

TEST(JointStep, IsTakenByAll) {
  bool taken = false;
  const JointStep step(shared_mpi_session(), [&] { taken = true; });
  EXPECT_TRUE(taken);
  EXPECT_EQ(step.problem(), "");
  EXPECT_NO_THROW(step.require("trying: ", "; help"));
}

/// Whose it is throws what was thrown, all others say whose it is.
TEST(JointStep, FailsOnAllIfItDoesOnOne) {
  const auto& job = shared_mpi_session();
  const bool own = job.rank() == GlobalRank(1);
  const JointStep step(job, [&] {
    if (own) throw UsageError("no such device");
  });
  EXPECT_EQ(step.problem(), "rank 1: no such device");
  const auto require = [&] { step.require("trying it: ", "; look at X"); };
  if (own) {
    EXPECT_EQ(refusal<UsageError>(require), "no such device");
  } else {
    EXPECT_EQ(refusal<PeerLostError>(require), "rank 1: trying it: no such device; look at X");
  }
}

/// A peer that is gone is nobody's own fault: all say what they were doing, and what may help.
TEST(JointStep, SaysOfLostPeersWhatWasTried) {
  const JointStep step(shared_mpi_session(), [] { throw PeerLostError("wrong bytes came"); });
  EXPECT_EQ(refusal<PeerLostError>([&] { step.require("trying it: ", "; look at X"); }),
            "rank 0: trying it: wrong bytes came; look at X");
}

}  // namespace joint_step_mpi_test
}  // namespace smp::d2d
