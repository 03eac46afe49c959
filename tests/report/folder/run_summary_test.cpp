// A run in a dozen lines.
#include "report/folder/run_summary.h"

#include <gmock/gmock.h>

#include "partition/plan/plan_example.h"

namespace smp::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

RunFacts small_run() {
  RunFacts facts;
  facts.name = "t5";
  facts.started = "2026-11-21T14:05:09Z";
  facts.world_size = 2;
  add_metrics(facts,
              R"({"step":1,"loss":6.5,"tokens_per_second":1,"step_seconds":9.5,"bubble":0.9}
{"step":2,"loss":6.25,"tokens_per_second":4000,"step_seconds":0.2,"bubble":0.3}
{"step":3,"loss":"nan","tokens_per_second":5000,"step_seconds":0.1,"bubble":0.2}
{"step":4,"loss":5.125,"tokens_per_second":3000,"step_seconds":0.3,"bubble":0.4}
{"st)");
  facts.plan = partitioning::t5_example(6, 2).plan();
  facts.memory = {50 << 20, 45 << 20};
  return facts;
}

TEST(RunSummary, HoldsWhatWasMeasuredAgainstWhatWasPromised) {
  EXPECT_EQ(run_summary(small_run()), R"(t5 on 2 ranks, started 2026-11-21T14:05:09Z: 4 steps
loss 6.5 in the first step, 5.125 in the last

a step    measured  predicted
time        200 ms     131 ms
bubble        30 %       12 %
tokens/s      4000          -

memory   measured  predicted   at most
stage 0  50.0 MiB   40.0 MiB  40.0 MiB
stage 1  45.0 MiB   36.0 MiB  40.0 MiB
Medians, without the first step. Measured memory is the most bytes of tensors at once, from the
second step on, beyond those that there were before the run: on stage 0 with the batch. What ranks
lend each other counts where it was made.
)");
}

TEST(RunSummary, TellsThatTheLossIsNoNumberAnyMore) {
  RunFacts facts;
  facts.name = "t5";
  add_metrics(facts, R"({"step":1,"loss":4}
{"step":2,"loss":3}
{"step":3,"loss":"nan"})");
  EXPECT_THAT(run_summary(facts), HasSubstr("loss 4 in the first step, nan in the last\n"));
  facts.numbers.clear();
  add_metrics(facts, R"({"step":1,"loss":"inf"}
{"step":2,"loss":3})");
  EXPECT_THAT(run_summary(facts), HasSubstr("loss inf in the first step, 3 in the last\n"));
}

TEST(RunSummary, TakesTheMiddleOfAllStepsButTheFirst) {
  RunFacts facts;
  add_metrics(facts, R"({"step":1,"bubble":0.9,"tokens_per_second":"nan"}
{"step":2,"bubble":0.2,"tokens_per_second":10}
{"step":3,"bubble":0.4,"tokens_per_second":30})");
  EXPECT_DOUBLE_EQ(*median_of(facts, "bubble"), 0.3);
  EXPECT_EQ(median_of(facts, "tokens_per_second"), 20) << "the first step is the one left out";
}

TEST(RunSummary, TellsNoTimesOfAPlanWhoseModulesWereCounted) {
  auto facts = small_run();
  auto summary = *facts.plan->summary();
  EXPECT_THAT(run_summary(facts), HasSubstr("131 ms"));
  summary.costs = "counts";
  facts.plan = PartitionPlan(2, facts.plan->rows(), summary);
  EXPECT_THAT(run_summary(facts), AllOf(Not(HasSubstr("131 ms")), HasSubstr("200 ms")));
}

TEST(RunSummary, SaysWhichRunsDidNotEndWell) {
  auto facts = small_run();
  EXPECT_THAT(run_summary(facts), Not(HasSubstr("did not end")));
  facts.ended_well = false;
  EXPECT_THAT(run_summary(facts), HasSubstr("did not end as it should"));
}

TEST(RunSummary, TellsWithWhatRanksComputed) {
  auto facts = small_run();
  facts.computing = "ranks 0-1 computed with 2 threads each on AMD EPYC (AVX512)";
  EXPECT_THAT(run_summary(facts), HasSubstr("4 steps\n" + facts.computing + "\nloss 6.5"));
}

TEST(RunSummary, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(run_summary({}), "");
  RunFacts facts;
  facts.name = "t5";
  facts.world_size = 1;
  add_metrics(facts, "{\"step\":1,\"loss\":2.5}\n");
  EXPECT_EQ(run_summary(facts), "t5 on 1 rank, started : 1 step\nloss 2.5\n");
  facts = {};
  facts.plan = small_run().plan;
  EXPECT_THAT(run_summary(facts), AllOf(HasSubstr("stage 1"), Not(HasSubstr("bubble"))));
}

}  // namespace
}  // namespace smp::report
