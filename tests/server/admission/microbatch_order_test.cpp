// Microbatches at a module that keeps state: lower ones first, or everyone when the step fails.
#include <string>
#include <vector>

#include "server/admission/admission_testing.h"
#include "server/backward/dead_frames.h"
#include "server/step/module_visits.h"
#include "support/refusal.h"

namespace smp::server {
namespace microbatch_order_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class MicrobatchOrderTest : public test::AdmissionTest {
 protected:
  void arrive(int microbatch) {
    spawn([this, microbatch] {
      admission_.pass_in_order(microbatch, "memory");
      passed_.push_back(microbatch);
    });
  }

  std::vector<int> passed_;
};

TEST_F(MicrobatchOrderTest, AMicrobatchWaitsForAllLowerForwards) {
  arrive(2);
  arrive(1);
  arrive(0);
  EXPECT_THAT(passed_, ElementsAre(0));
  admission_.forward_done(1);
  let_run();
  EXPECT_THAT(passed_, ElementsAre(0)) << "0 is not done";
  admission_.forward_done(0);
  let_run();
  EXPECT_THAT(passed_, ::testing::UnorderedElementsAre(0, 1, 2));
  arrive(3);
  EXPECT_THAT(waiting(), ElementsAre(3));
  EXPECT_THAT(reasons(), ElementsAre(Reason::kMicrobatchOrder));
  admission_.open_all();
  let_run();
}

TEST_F(MicrobatchOrderTest, ADoneMicrobatchCountsOnce) {
  admission_.forward_done(0);
  admission_.forward_done(0);
  arrive(1);
  arrive(2);
  EXPECT_THAT(passed_, ElementsAre(1));
  admission_.open_all();
  let_run();
}

TEST_F(MicrobatchOrderTest, ThoseThatWaitAreNamedWithModuleAndMicrobatch) {
  arrive(1);
  EXPECT_THAT(scheduler_.waiting_report(),
              ElementsAre(::testing::AllOf(::testing::HasSubstr("memory"),
                                           ::testing::HasSubstr("microbatch 1"))));
  admission_.open_all();
  let_run();
}

TEST_F(MicrobatchOrderTest, OpensForAllWhenTheStepFails) {
  arrive(1);
  EXPECT_THAT(passed_, IsEmpty());
  admission_.open_all();
  let_run();
  arrive(3);
  EXPECT_THAT(passed_, ElementsAre(1, 3));
}

TEST_F(MicrobatchOrderTest, ForgetsWhoWasNotAllowedToWait) {
  std::string refused;
  test::inside_parallel_for(
      [&] { refused = refusal<UsageError>([&] { admission_.pass_in_order(1, "memory"); }); });
  EXPECT_THAT(refused, ::testing::HasSubstr("inside at::parallel_for"));
  EXPECT_TRUE(test::leaves_dead_frames_alone([&] { admission_.forward_done(0); }));
}

/// pp_rank 0 alone knows of a batch with fewer rows than microbatches, others of more of them.
TEST_F(MicrobatchOrderTest, MicrobatchesOfOthersDoNotCount) {
  admission_.forward_done(6);
  arrive(1);
  EXPECT_THAT(passed_, IsEmpty());
  admission_.open_all();
  let_run();
}

TEST(ModuleVisits, KnowWhoWasInAModuleAlready) {
  ModuleVisits visits;
  EXPECT_EQ(visits.enter(5, 0), 0);
  EXPECT_EQ(visits.enter(5, 2), 2);
  EXPECT_EQ(visits.enter(5, 1), 2);
  EXPECT_EQ(visits.enter(4, 1), 1);
}

}  // namespace microbatch_order_test
}  // namespace smp::server
