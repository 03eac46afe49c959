// Two runs side by side.
#include "report/folder/run_comparison.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <limits>

#include "base/check.h"
#include "base/files.h"
#include "partition/plan/plan_example.h"
#include "report/analysis/trace_file.h"
#include "report/folder/run_folder.h"
#include "report/svg_reader.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// Two ranks that compute in the first half of the step.
StepTimeline step_of(base::Nanoseconds length) {
  StepTimeline timeline;
  for (const int rank : {0, 1}) {
    schedule::StepTrace trace;
    trace.pp_rank = rank;
    trace.end = length;
    schedule::Span work;
    work.end = length / 2;
    trace.spans = {work};
    timeline.ranks.push_back(trace);
  }
  return timeline;
}

ComparedRun first_run() {
  ComparedRun run;
  run.name = "t5-1";
  run.facts.name = "t5";
  run.facts.world_size = 2;
  add_metrics(run.facts,
              R"({"step":1,"loss":6.5,"tokens_per_second":1,"step_seconds":9.5,"bubble":0.9}
{"step":2,"loss":6.25,"tokens_per_second":4000,"step_seconds":0.2,"bubble":0.3}
{"step":3,"loss":6,"tokens_per_second":4000,"step_seconds":0.2,"bubble":0.3}
)");
  run.losses = {{1, 6.5}, {2, 6.25}, {3, 6}};
  run.facts.memory = {50 << 20, 45 << 20};
  run.facts.plan = partitioning::t5_example(6, 2).plan();
  run.step = step_of(100 * base::kMillisecond);
  run.configuration =
      R"({"microbatches":{"value":8,"origin":"default"},"pipeline":{"value":"simple","origin":"x"}})";
  run.loss_unit = "nats";
  return run;
}

ComparedRun second_run() {
  auto run = first_run();
  run.name = "t5-2";
  run.facts.numbers.clear();
  run.facts.steps = 0;
  add_metrics(run.facts,
              R"({"step":1,"loss":6.5,"tokens_per_second":1,"step_seconds":9.5,"bubble":0.9}
{"step":2,"loss":6.2500001,"tokens_per_second":8000,"step_seconds":0.1,"bubble":0.1}
)");
  run.losses = {{1, 6.5}, {2, 6.2500001}};
  run.facts.memory = {25 << 20};
  run.step = step_of(50 * base::kMillisecond);
  run.configuration =
      R"({"microbatches":{"value":8,"origin":"y"},"pipeline":{"value":"1f1b","origin":"y"}})";
  return run;
}

TEST(RunComparison, PutsTheNumbersBesideEachOther) {
  EXPECT_EQ(comparison_text(first_run(), second_run(), 100),
            R"(                            t5-1      t5-2    change
ranks                          2         2
steps                          3         2
loss in the first step       6.5       6.5    +0.0 %
loss in the last step          6      6.25    +4.2 %
a step                    200 ms    100 ms   -50.0 %
a step, as planned        131 ms    131 ms    +0.0 %
bubble                      30 %      10 %
tokens/s                    4000      8000  +100.0 %
memory of stage 0       50.0 MiB  25.0 MiB   -50.0 %
memory of stage 1       45.0 MiB         -
The losses of the 2 steps that both have differ by at most 1.6e-08 of their size, in step 2.

of the recorded step     t5-1     t5-2   change
busy                  50.0 ms  25.0 ms  -50.0 %
after its last work   50.0 ms  25.0 ms  -50.0 %
Means of the ranks, in the step that was recorded last, and since the step before.

setting     t5-1  t5-2
pipeline  simple  1f1b

Both plans place every module alike, on 2 stages.
)");
}

TEST(RunComparison, TellsHowFarLossesAreApart) {
  auto one = first_run(), other = second_run();
  EXPECT_THAT(comparison_text(one, other, 100),
              HasSubstr("The losses of the 2 steps that both have differ by at most 1.6e-08 of "
                        "their size, in step 2."));
  EXPECT_THAT(comparison_text(one, one, 100),
              HasSubstr("The losses of the 3 steps that both have are the same numbers."));
  other.losses[0].y = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(comparison_text(one, other, 100), HasSubstr("In step 1 the losses are 6.5 and nan."));
  other.losses = {{7, 1}};
  EXPECT_THAT(comparison_text(one, other, 100), Not(HasSubstr("that both have")));
}

TEST(RunComparison, ListsSettingsAndModulesThatDiffer) {
  auto one = first_run(), other = second_run();
  EXPECT_THAT(comparison_text(one, other, 100),
              AllOf(HasSubstr("setting     t5-1  t5-2\npipeline  simple  1f1b\n"),
                    Not(HasSubstr("microbatches")),
                    HasSubstr("Both plans place every module alike, on 2 stages.")));
  auto rows = one.facts.plan->rows();
  for (auto& row : rows) {
    if (row.path.starts_with("encoder.block.1")) row.pp_rank = 1 - row.pp_rank;
  }
  other.facts.plan = PartitionPlan(2, rows);
  const auto text = comparison_text(one, other, 100);
  EXPECT_THAT(text, HasSubstr("\nencoder.block.1 "));
  EXPECT_THAT(text, Not(HasSubstr("encoder.block.1."))) << "what is below it moved with it";
  EXPECT_THAT(text, Not(HasSubstr("alike")));
  rows.pop_back();
  other.facts.plan = PartitionPlan(2, rows);
  EXPECT_THAT(comparison_text(one, other, 100), HasSubstr("The models differ"));
}

TEST(RunComparison, LeavesOutWhatNoRunHas) {
  ComparedRun nothing;
  nothing.name = "nothing";
  EXPECT_EQ(comparison_text(nothing, nothing, 100),
            "       nothing  nothing  change\n"
            "ranks        0        0\n"
            "steps        0        0\n");
  EXPECT_THAT(draw_comparison(nothing, nothing), Not(HasSubstr("<svg")));
}

TEST(RunComparison, IsOnePageWithBothLossesAndSteps) {
  const auto page = draw_comparison(first_run(), second_run());
  EXPECT_THAT(
      page,
      AllOf(HasSubstr("t5-1 beside t5-2"), HasSubstr("loss, nats"),
            HasSubstr("<th>a step</th><td>200 ms</td><td>100 ms</td><td>-50.0 %</td>"),
            HasSubstr("One step of t5-1"), HasSubstr("One step of t5-2"), Not(HasSubstr("src="))));
  EXPECT_EQ(elements(page, "polyline", "curve").size(), 2u);
  EXPECT_EQ(texts(page, "name").size(), 2u);
}

class TwoFolders : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* const name : {"a", "b"}) {
      const auto folder = parent_ + "/" + name;
      base::create_directories(folder);
      RunDescription description;
      description.name = "t5";
      description.world_size = 2;
      description.configuration = "{}";
      base::write_file(folder + "/" + kRunFile, description_to_json(description));
      base::write_file(folder + "/" + kMetricsFile,
                       metrics_line({{"step", 1}, {"loss", 5}}) + "\n");
      base::write_file(folder + "/" + kTraceFile, trace_to_json(step_of(1000)));
    }
  }
  void TearDown() override { std::filesystem::remove_all(parent_); }
  const std::string parent_ = base::concat(testing::TempDir(), "smp_run_comparison_", ::getpid());
};

TEST_F(TwoFolders, AreReadAndCompared) {
  const auto [text, page] = compare_runs(parent_ + "/a/", parent_ + "/b", "", 100);
  EXPECT_EQ(page, parent_ + "/b/compared-with-a.html");
  EXPECT_THAT(text, AllOf(HasSubstr("the same numbers"), HasSubstr("busy")));
  EXPECT_THAT(base::read_file(page), HasSubstr("a beside b"));
  const auto elsewhere = parent_ + "/page.html";
  EXPECT_EQ(compare_runs(parent_ + "/a", parent_ + "/b", elsewhere, 100).second, elsewhere);
  EXPECT_TRUE(base::file_exists(elsewhere));
}

TEST_F(TwoFolders, OfTheSameNameAreToldByTheirPaths) {
  std::filesystem::copy(parent_ + "/a", parent_ + "/b/a", std::filesystem::copy_options::recursive);
  const auto text = compare_runs(parent_ + "/a", parent_ + "/b/a", "", 200).first;
  EXPECT_THAT(text, AllOf(HasSubstr(parent_ + "/a "), HasSubstr(parent_ + "/b/a")));
}

TEST_F(TwoFolders, OfWhichOneIsNoRunsAreRefused) {
  EXPECT_THAT(refusal<UsageError>([&] { (void)compare_runs(parent_ + "/a", parent_, "", 100); }),
              HasSubstr(parent_ + " is no run's folder"));
}

}  // namespace
}  // namespace smp::report
