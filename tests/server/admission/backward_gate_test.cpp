// Bodies at the gate: they go on when the schedule lets them, or when the step fails.
#include <string>
#include <vector>

#include "server/admission/admission_testing.h"
#include "server/backward/dead_frames.h"
#include "support/refusal.h"

namespace smp::server {
namespace backward_gate_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Bodies of three microbatches, each on a fiber; simulated time, first come, first served.
class BackwardGateTest : public test::AdmissionTest {
 protected:
  BackwardGateTest() : AdmissionTest(schedule::make_simple(), 3, 0) {
    while (admission_.next_body()) {
    }
  }
  /// The body of `microbatch` reaches its first backward.
  void arrive(int microbatch) {
    spawn([this, microbatch] {
      admission_.body_forward_done(microbatch);
      admission_.pass_gate(microbatch);
      passed_.push_back(microbatch);
    });
  }

  std::vector<int> passed_;
};

TEST_F(BackwardGateTest, OpensForAllWhenTheLastForwardIsDone) {
  arrive(1);
  arrive(0);
  EXPECT_THAT(passed_, IsEmpty());
  EXPECT_EQ(scheduler_.waiting_report().size(), 2u);
  arrive(2);
  EXPECT_THAT(passed_, ::testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_FALSE(scheduler_.any_waiting());
}

TEST_F(BackwardGateTest, ThoseThatWaitAreNamedWithTheirMicrobatch) {
  arrive(1);
  EXPECT_THAT(
      scheduler_.waiting_report(),
      ElementsAre(::testing::HasSubstr("waits for the schedule to begin backward, microbatch 1")));
  EXPECT_FALSE(scheduler_.any_waiting_for_peer());
  EXPECT_THAT(waiting(), ElementsAre(1));
  EXPECT_THAT(reasons(), ElementsAre(Reason::kBackwardGate));
  admission_.open_all();
  let_run();
}

TEST_F(BackwardGateTest, ABodyWithoutBackwardCountsToo) {
  arrive(0);
  arrive(1);
  admission_.body_ended(2);
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0, 1));
}

TEST_F(BackwardGateTest, ForgetsWhoWasNotAllowedToWait) {
  admission_.body_forward_done(1);
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { admission_.pass_gate(1); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("call what waits outside of it"));
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { admission_.open_all(); }));
}

TEST_F(BackwardGateTest, StaysOpenWhenTheStepFails) {
  arrive(0);
  admission_.open_all();
  EXPECT_THAT(passed_, IsEmpty()) << "it is woken, it does not run yet";
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0));
  arrive(1);
  EXPECT_THAT(passed_, ElementsAre(0, 1)) << "nobody waits any more";
}

}  // namespace backward_gate_test
}  // namespace smp::server
