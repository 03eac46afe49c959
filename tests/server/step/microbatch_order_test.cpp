// Microbatches at a module that keeps state: lower ones first, or everyone when the step fails.
#include "server/step/microbatch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/backward/dead_frames.h"
#include "support/refusal.h"

namespace smp::server {
namespace microbatch_order_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MicrobatchOrderTest : public ::testing::Test {
 protected:
  void arrive(int microbatch) {
    fiber::Scheduler::instance().spawn(
        [this, microbatch] {
          order_.pass(microbatch, "memory");
          passed_.push_back(microbatch);
        },
        {}, 1 << 20);
    let_run();
  }
  void let_run() {
    for (int i = 0; i < 10; ++i) scheduler_.yield();
  }

  fiber::Scheduler& scheduler_ = fiber::Scheduler::install();
  MicrobatchOrder order_{4};
  std::vector<int> passed_;
};

TEST_F(MicrobatchOrderTest, AMicrobatchWaitsForAllLowerForwards) {
  arrive(2);
  arrive(1);
  arrive(0);
  EXPECT_THAT(passed_, ElementsAre(0));
  order_.forward_done(1);
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0)) << "0 is not done";
  order_.forward_done(0);
  let_run();
  EXPECT_THAT(passed_, ::testing::UnorderedElementsAre(0, 1, 2));
  EXPECT_FALSE(order_.has_turn(3));
}

TEST_F(MicrobatchOrderTest, ADoneMicrobatchCountsOnce) {
  order_.forward_done(0);
  order_.forward_done(0);
  EXPECT_TRUE(order_.has_turn(1));
  EXPECT_FALSE(order_.has_turn(2));
}

TEST_F(MicrobatchOrderTest, ThoseThatWaitAreNamedWithModuleAndMicrobatch) {
  arrive(1);
  EXPECT_THAT(scheduler_.waiting_report(),
              ElementsAre(::testing::AllOf(::testing::HasSubstr("memory"),
                                           ::testing::HasSubstr("microbatch 1"))));
  order_.open_all();
  let_run();
}

TEST_F(MicrobatchOrderTest, OpensForAllWhenTheStepFails) {
  arrive(1);
  EXPECT_THAT(passed_, IsEmpty());
  order_.open_all();
  let_run();
  arrive(3);
  EXPECT_THAT(passed_, ElementsAre(1, 3));
}

TEST_F(MicrobatchOrderTest, ForgetsWhoWasNotAllowedToWait) {
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { order_.pass(1, "memory"); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("inside at::parallel_for"));
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { order_.forward_done(0); }));
}

TEST_F(MicrobatchOrderTest, KnowsWhoWasInAModuleAlready) {
  EXPECT_EQ(order_.enter(5, 0), 0);
  EXPECT_EQ(order_.enter(5, 2), 2);
  EXPECT_EQ(order_.enter(5, 1), 2);
  EXPECT_EQ(order_.enter(4, 1), 1);
}

}  // namespace microbatch_order_test
}  // namespace smp::server
