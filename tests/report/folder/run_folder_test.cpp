// The loss picture, and drawing a run again from its folder.
#include "report/folder/run_folder.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/check.h"
#include "base/files.h"
#include "partition/plan/plan_example.h"
#include "partition/simulated/planned_step.h"
#include "report/analysis/trace_file.h"
#include "report/export/chrome_trace.h"
#include "report/pictures/memory_use.h"
#include "report/svg_reader.h"
#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

LossChart falling(int steps) {
  LossChart chart;
  for (int step = 1; step <= steps; ++step) chart.points.push_back({double(step), 5.0 / step});
  return chart;
}

TEST(LossChart, DrawsEveryStepAndTheirMean) {
  const std::string svg = draw_loss(falling(100));
  EXPECT_EQ(elements(svg, "polyline", "loss").size(), 1u);
  EXPECT_EQ(elements(svg, "polyline", "mean").size(), 1u);
  EXPECT_THAT(svg, HasSubstr("mean of 5 steps"));
}

TEST(LossChart, LeavesTheMeanOutOfAShortRun) {
  EXPECT_THAT(elements(draw_loss(falling(5)), "polyline", "mean"), IsEmpty());
  EXPECT_THAT(draw_loss(falling(1)), HasSubstr("polyline"));
  EXPECT_THAT(draw_loss({}), HasSubstr("no steps yet"));
}

TEST(LossChart, OfAMillionStepsIsNoLargerThanItLooks) {
  LossChart chart = falling(1'000'000);
  chart.points[500'000].y = 4;  // one step stands out, and is still seen
  const auto begin = std::chrono::steady_clock::now();
  const std::string svg = draw_loss(chart);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_LT(svg.size(), 200'000);
  chart.points[500'000].y = 0;
  EXPECT_NE(draw_loss(chart), svg);
}

TEST(LossChart, DrawsTheBaselineWithinThePicture) {
  LossChart chart = falling(10);
  chart.baseline = Baseline{9, "entropy of single bytes"};
  const std::string svg = draw_loss(chart);
  const auto lines = elements(svg, "line", "baseline");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_GT(number(lines[0], "y1"), 50);
  EXPECT_THAT(svg, HasSubstr("entropy of single bytes (9)"));
}

TEST(LossChart, MarksStepsWithoutAFiniteLoss) {
  LossChart chart = falling(10);
  chart.points[4].y = std::nan("");
  chart.points[5].y = std::numeric_limits<double>::infinity();
  const std::string svg = draw_loss(chart);
  EXPECT_EQ(texts(svg, "not-finite").size(), 2u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

/// Of prices, of counts, of a run that diverges.
TEST(LossChart, DrawsLossesOfAnySize) {
  for (const double loss : {5e9, -5e9, 4e10, 1e17, -1e35, 1e289, 1e308, 0.0}) {
    LossChart chart = falling(3);
    for (auto& point : chart.points) point.y = loss;
    const std::string svg = draw_loss(chart);
    EXPECT_THAT(svg, AllOf(Not(HasSubstr("nan")), Not(HasSubstr("inf\"")))) << loss;
    EXPECT_LT(svg.size(), 20'000) << loss;
  }
}

TEST(Metrics, AreOneJsonObjectPerLine) {
  EXPECT_EQ(metrics_line({{"step", 3}, {"loss", 2.5}, {"norm", std::nan("")}, {"tokens", 1e6}}),
            R"({"step":3,"loss":2.5,"norm":"nan","tokens":1000000})");
}

TEST(Metrics, GiveTheLossOfEachStepAndForgiveATornLastLine) {
  const auto points = losses_of(
      "{\"step\":1,\"loss\":2.5}\n{\"note\":1}\n{\"step\":2,\"loss\":\"inf\"}\n{\"st", "m.jsonl");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[0].y, 2.5);
  EXPECT_TRUE(std::isinf(points[1].y));
  EXPECT_THROW(losses_of("{\"st\n{\"step\":1,\"loss\":2}\n", "m.jsonl"), UsageError);
}

class RunFolder : public testing::Test {
 protected:
  void SetUp() override { base::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string in(const char* name) const { return folder_ + "/" + name; }
  std::string folder_ = base::concat(testing::TempDir(), "smp_run_folder_", ::getpid());
};

RunDescription description() {
  RunDescription made;
  made.name = "t5";
  made.started = "2026-11-21T14:05:09Z";
  made.smp_version = "0.1.0";
  made.torch_version = "2.13.0";
  made.world_size = 4;
  made.loss_unit = "nats per byte";
  made.baseline = Baseline{3.33, "entropy"};
  made.configuration = R"({"seed":{"value":1,"origin":"default"}})";
  return made;
}

TEST_F(RunFolder, IsDrawnAgainFromItsFiles) {
  base::write_file(in(kRunFile), description_to_json(description()));
  base::write_file(in(kMetricsFile), metrics_line({{"step", 1}, {"loss", 5}}) + "\n");
  StepTimeline timeline;
  timeline.ranks.resize(2);
  base::write_file(in(kTraceFile), trace_to_json(timeline));
  EXPECT_THAT(draw_run(folder_),
              ElementsAre(in(kLossPicture), in(kMetricsTable), in(kTimelinePicture),
                          in(kTimelinePage), in(kReportPage)));
  EXPECT_THAT(base::read_file(in(kLossPicture)),
              AllOf(HasSubstr("Loss of t5 on 4 ranks"), HasSubstr("loss, nats per byte"),
                    HasSubstr("entropy (3.33)")));
  EXPECT_THAT(base::read_file(in(kTimelinePicture)), HasSubstr("on 2 ranks"));
}

TEST_F(RunFolder, ShowsThePlanAndTheStepThatWasSimulatedForIt) {
  StepTimeline simulated;
  simulated.ranks.resize(3);
  simulated.simulated = true;
  write_plan(folder_, partitioning::t5_example().plan(), trace_to_json(simulated));
  EXPECT_THAT(draw_run(folder_), ElementsAre(in(kPartitionPicture), in(kMemoryPicture),
                                             in(kSimulationPicture), in(kReportPage)));
  EXPECT_THAT(base::read_file(in(kPartitionPicture)), HasSubstr("on 3 stages"));
  EXPECT_THAT(base::read_file(in(kMemoryPicture)), HasSubstr("Predicted memory of each stage"));
  EXPECT_THAT(base::read_file(in(kSimulationPicture)), HasSubstr("Simulated step"));
}

/// The planned step is simulated again; where that cannot be, its picture is left out.
TEST_F(RunFolder, ShowsTheMemoryOverThePlannedStep) {
  auto example = partitioning::t5_example();
  partitioning::PlannedStep step;
  step.trace = example.trace;
  step.trace.calls[1].after = {0.5, 1 << 20};
  step.trace.recomputed = {{example.trace.calls[1].module}};
  step.machine = example.machine;
  step.machine.stages = 3;
  StepTimeline simulated;
  simulated.ranks.resize(3);
  simulated.simulated = true;
  const auto pictures_with = [&](const partitioning::PlannedStep& planned) {
    write_plan(folder_, example.plan(), trace_to_json(simulated, planned.to_json()));
    return draw_run(folder_);
  };
  EXPECT_THAT(pictures_with(step), Contains(in(kStepMemoryPicture)));
  const auto svg = base::read_file(in(kStepMemoryPicture));
  EXPECT_EQ(elements(svg, "polyline", "live").size(), 3u);
  EXPECT_EQ(elements(svg, "polyline", "held").size(), 3u);
  step.machine.stages = 2;
  EXPECT_THAT(pictures_with(step), Not(Contains(in(kStepMemoryPicture))));
  step.machine.stages = 3;
  step.pipeline = "file:" + in("gone.txt");
  EXPECT_THAT(pictures_with(step), Not(Contains(in(kStepMemoryPicture))));
}

/// The step that is drawn may be a part of the plan's.
TEST_F(RunFolder, ShowsTheBubbleThatThePlanPromises) {
  StepTimeline simulated;
  simulated.ranks.resize(3);
  const auto plan = partitioning::t5_example().plan();
  auto summary = *plan.summary();
  summary.chosen.bubble = 0.4321;
  write_plan(folder_, PartitionPlan(3, plan.rows(), summary), trace_to_json(simulated));
  draw_run(folder_);
  EXPECT_THAT(base::read_file(in(kReportPage)), HasSubstr("<th>simulated</th><td>43.2 %</td>"));
}

TEST_F(RunFolder, ShowsThatBubbleBesideTheStepItself) {
  StepTimeline timeline;
  timeline.ranks.resize(3);
  base::write_file(in(kTraceFile), trace_to_json(timeline));
  draw_run(folder_);
  EXPECT_THAT(base::read_file(in(kTimelinePage)),
              AllOf(HasSubstr("<th>measured</th>"), Not(HasSubstr("<th>simulated</th>"))));
  const auto plan = partitioning::t5_example().plan();
  auto summary = *plan.summary();
  summary.chosen.bubble = 0.4321;
  write_plan(folder_, PartitionPlan(3, plan.rows(), summary), trace_to_json(timeline));
  draw_run(folder_);
  for (const char* const page : {kTimelinePage, kReportPage}) {
    EXPECT_THAT(base::read_file(in(page)), AllOf(HasSubstr("<th>measured</th>"),
                                                 HasSubstr("<th>simulated</th><td>43.2 %</td>"),
                                                 HasSubstr("of equal stages without any delay")));
  }
  write_plan(folder_, PartitionPlan(3, plan.rows()), trace_to_json(timeline));
  draw_run(folder_);
  EXPECT_THAT(base::read_file(in(kTimelinePage)), HasSubstr("<th>simulated</th><td>"));
}

TEST_F(RunFolder, ShowsTheMemoryThatWasMeasuredBesideThatPredicted) {
  const auto plan = partitioning::t5_example().plan();
  write_plan(folder_, plan, "");
  base::write_file(in(kMemoryFile), memory_use_to_json({30 << 20, 0, 40 << 20}));
  draw_run(folder_);
  EXPECT_EQ(elements(base::read_file(in(kMemoryPicture)), "rect", "measured").size(), 2u);
  const auto page = base::read_file(in(kReportPage));
  EXPECT_EQ(elements(page, "rect", "measured").size(), 2u);
  EXPECT_THAT(
      page, AllOf(HasSubstr("<th>stage 0</th><td>30.0 MiB</td><td>33.0 MiB</td><td>33.0 MiB</td>"),
                  HasSubstr("<th>stage 1</th><td>-</td><td>25.0 MiB</td><td>27.5 MiB</td>"),
                  HasSubstr("Measured memory is the most")));
  write_plan(folder_, PartitionPlan(3, plan.rows()), "");
  draw_run(folder_);
  EXPECT_THAT(base::read_file(in(kReportPage)),
              AllOf(HasSubstr("<h2>Memory</h2>"),
                    HasSubstr("<th>stage 0</th><td>30.0 MiB</td><td>-</td><td>-</td>")));
}

/// As a killed run leaves it, and one on a system that does not tell memory.
TEST_F(RunFolder, SaysNothingOfMemoryThatWasNotMeasured) {
  write_plan(folder_, partitioning::t5_example().plan(), "");
  draw_run(folder_);
  const auto page = base::read_file(in(kReportPage));
  EXPECT_THAT(page, AllOf(HasSubstr("Predicted memory of each stage"), Not(HasSubstr("Measured")),
                          Not(HasSubstr("measured<")), Not(HasSubstr("measured:"))));
  base::write_file(in(kMemoryFile), memory_use_to_json({0, 0, 0}));
  draw_run(folder_);
  EXPECT_EQ(base::read_file(in(kReportPage)), page);
}

TEST_F(RunFolder, LeavesOutWhatAPlanByHandDoesNotPredict) {
  const PartitionPlan plan = partitioning::t5_example().plan();
  write_plan(folder_, PartitionPlan(3, plan.rows()), "");
  EXPECT_THAT(draw_run(folder_), ElementsAre(in(kPartitionPicture), in(kReportPage)));
}

TEST_F(RunFolder, IsDrawnAsFarAsItGoes) {
  base::write_file(in(kMetricsFile), "");
  EXPECT_THAT(draw_run(folder_), IsEmpty());
  base::write_file(in(kMetricsFile), metrics_line({{"step", 1}, {"loss", 5}}) + "\n");
  EXPECT_THAT(draw_run(folder_), ElementsAre(in(kLossPicture), in(kMetricsTable), in(kReportPage)));
}

TEST_F(RunFolder, IsOnePageThatNeedsNoOther) {
  auto described = description();
  described.name = "t5 <script>";
  described.configuration =
      R"({"seed":{"value":1,"origin":"--smp.seed"},"pipeline":{"value":"simple"}})";
  base::write_file(in(kRunFile), description_to_json(described));
  base::write_file(in(kMetricsFile), metrics_line({{"step", 1}, {"loss", 5}}) + "\n" +
                                         metrics_line({{"step", 2}, {"loss", 4.5}}) + "\n{\"st");
  StepTimeline timeline;
  timeline.ranks.resize(2);
  base::write_file(in(kTraceFile), trace_to_json(timeline));
  const auto plan = partitioning::t5_example().plan();
  timeline.simulated = true;
  write_plan(folder_, plan, trace_to_json(timeline));
  EXPECT_EQ(draw_run(folder_).back(), in(kReportPage));
  const auto page = base::read_file(in(kReportPage));
  EXPECT_THAT(page, AllOf(HasSubstr("Run t5 &lt;script&gt;"), HasSubstr("smp 0.1.0"),
                          HasSubstr("<th>loss</th><td>4.5</td>"),
                          HasSubstr("<th>seed</th><td>1</td><td>--smp.seed</td>"),
                          HasSubstr("<th>pipeline</th><td>simple</td>")));
  for (const char* const heading : {"Loss", "One step", "Partition", "Memory", "Configuration",
                                    "The step that was simulated for the plan"}) {
    EXPECT_THAT(page, HasSubstr(std::string("<h2>") + heading + "</h2>"));
  }
  EXPECT_THAT(page, AllOf(HasSubstr("default-src 'none'"), Not(HasSubstr("src=")),
                          Not(HasSubstr("<?xml")), Not(HasSubstr("@import"))));
}

TEST_F(RunFolder, ExportsItsStepForOtherViewers) {
  EXPECT_THAT(refusal([&] { export_trace(folder_, ""); }),
              AllOf(HasSubstr(folder_), HasSubstr("holds no step")));
  StepTimeline timeline;
  timeline.ranks.resize(2);
  base::write_file(in(kSimulationFile), trace_to_json(timeline));
  EXPECT_EQ(export_trace(folder_, ""), in(kChromeTrace));
  EXPECT_EQ(base::read_file(in(kChromeTrace)), to_chrome_trace(timeline));
  EXPECT_EQ(export_trace(folder_, in("elsewhere.json")), in("elsewhere.json"));
  EXPECT_EQ(base::read_file(in("elsewhere.json")), to_chrome_trace(timeline));
}

TEST_F(RunFolder, IsToldFromOtherFolders) {
  EXPECT_THAT(refusal([&] { draw_run(folder_); }),
              AllOf(HasSubstr(folder_), HasSubstr("is no run folder")));
}

TEST_F(RunFolder, WhoseConfigurationIsNoObjectIsNamed) {
  auto of_list = description();
  of_list.configuration = "[]";
  const auto text = description_to_json(of_list);
  EXPECT_THAT(refusal<UsageError>([&] { description_from_json(text, "runs/a/run.json"); }),
              HasSubstr("runs/a/run.json: \"configuration\" must be an object"));
}

TEST_F(RunFolder, KeepsWithHowManyThreadsAndOnWhatProcessorsRanksComputed) {
  auto described = description();
  described.computing = {{"ranks 0-1, 3", 2, "AMD EPYC (AVX512)"}, {"rank 2", 1, "aarch64 (NEON)"}};
  const auto text = description_to_json(described);
  const auto read = description_from_json(text, "run.json");
  EXPECT_EQ(description_to_json(read), text);
  ASSERT_EQ(read.computing.size(), 2u);
  EXPECT_EQ(read.computing[0].threads, 2);
  EXPECT_EQ(read.computing[1].processor, "aarch64 (NEON)");
  base::write_file(in(kRunFile), text);
  base::write_file(in(kMetricsFile), metrics_line({{"step", 1}, {"loss", 5}}) + "\n");
  draw_run(folder_);
  const std::string told =
      "ranks 0-1, 3 computed with 2 threads each on AMD EPYC (AVX512); rank 2 computed with 1 "
      "thread "
      "on aarch64 (NEON)";
  EXPECT_THAT(base::read_file(in(kReportPage)), HasSubstr("LibTorch 2.13.0; " + told));
  EXPECT_THAT(summarise_run(folder_, 200), HasSubstr(told));
}

TEST_F(RunFolder, OfAnOlderVersionSaysNothingOfThreads) {
  const auto text = description_to_json(description());
  EXPECT_THAT(text, Not(HasSubstr("computing")));
  EXPECT_THAT(description_from_json(text, "run.json").computing, IsEmpty());
  EXPECT_THAT(refusal<UsageError>([&] {
                auto damaged = text;
                damaged.insert(damaged.find('{') + 1, "\"computing\": 3,");
                description_from_json(damaged, "runs/a/run.json");
              }),
              HasSubstr("runs/a/run.json: \"computing\" must be an array"));
}

TEST_F(RunFolder, DescriptionSurvivesItsFile) {
  const std::string text = description_to_json(description());
  EXPECT_EQ(description_to_json(description_from_json(text, "run.json")), text);
}

}  // namespace
}  // namespace smp::report
