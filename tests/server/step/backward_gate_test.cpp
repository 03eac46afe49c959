// Bodies at the gate: they go on when the schedule lets them, or when the step fails.
#include "server/step/backward_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "schedule/schedule.h"
#include "server/backward/dead_frames.h"
#include "support/refusal.h"

namespace smp::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Bodies of three microbatches, each on a fiber; simulated time, first come, first served.
class BackwardGateTest : public ::testing::Test {
 protected:
  BackwardGateTest() {
    while (progress_.start_next()) {
    }
  }
  /// The body of `microbatch` reaches its first backward.
  void arrive(int microbatch) {
    fiber::Scheduler::instance().spawn(
        [this, microbatch] {
          progress_.forward_finished(microbatch);
          gate_.open(progress_);
          gate_.pass(progress_, microbatch);
          passed_.push_back(microbatch);
        },
        {}, 1 << 20);
    let_run();
  }
  void let_run() {
    for (int i = 0; i < 10; ++i) scheduler_.yield();
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  std::unique_ptr<schedule::Schedule> schedule_ = schedule::make_simple();
  schedule::StepProgress progress_{*schedule_, 3};
  BackwardGate gate_;
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
  gate_.open_all();
  let_run();
}

TEST_F(BackwardGateTest, ABodyWithoutBackwardCountsToo) {
  arrive(0);
  arrive(1);
  progress_.body_finished(2);
  gate_.open(progress_);
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0, 1));
}

TEST_F(BackwardGateTest, ForgetsWhoWasNotAllowedToWait) {
  progress_.forward_finished(1);
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { gate_.pass(progress_, 1); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("call what waits outside of it"));
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { gate_.open_all(); }));
}

TEST_F(BackwardGateTest, StaysOpenWhenTheStepFails) {
  arrive(0);
  gate_.open_all();
  EXPECT_THAT(passed_, IsEmpty()) << "it is woken, it does not run yet";
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0));
  arrive(1);
  EXPECT_THAT(passed_, ElementsAre(0, 1)) << "nobody waits any more";
}

}  // namespace
}  // namespace smp::server
