// Boxes that account for every module, heights that add up, bars that add up, text that fits.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>
#include <regex>

#include "base/check.h"
#include "partition/plan/plan_example.h"
#include "report/page/svg_writer.h"
#include "report/pictures/memory_picture.h"
#include "report/pictures/partition_picture.h"
#include "report/pictures/plan_boxes.h"
#include "report/svg_reader.h"

namespace smp::report {
namespace {

using partitioning::example_of;
using partitioning::PlanExample;
using partitioning::t5_example;
using partitioning::TreeBuilder;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

std::vector<std::string> whole_names(const PlanBoxes& folded) {
  std::vector<std::string> names;
  for (const PlanBox& box : folded.boxes) {
    if (box.children.empty()) names.push_back(box.name);
  }
  return names;
}

int modules_in(const PlanBoxes& folded) {
  int sum = 0;
  for (const PlanBox& box : folded.boxes) sum += box.modules;
  return sum;
}

TEST(PlanBoxes, FoldRepeatsAndWholeModules) {
  EXPECT_THAT(
      whole_names(fold_plan(t5_example().plan())),
      ElementsAre("shared", "encoder.block[0:2]", "encoder.block[2:6]", "encoder.final_norm",
                  "decoder.block.0", "decoder.block[1:6]", "decoder.final_norm", "lm_head"));
}

TEST(PlanBoxes, StandForEveryModuleOnce) {
  for (const auto& [blocks, stages] : {std::pair(1, 1), std::pair(12, 5), std::pair(100, 64)}) {
    const PartitionPlan plan = t5_example(blocks, stages).plan();
    for (const int most : {1000, 10}) {
      const PlanBoxes folded = fold_plan(plan, most);
      EXPECT_EQ(modules_in(folded), static_cast<int>(plan.rows().size()));
      std::int64_t elements = 0;
      for (const PlanBox& box : folded.boxes) elements += box.elements;
      std::int64_t expected = 0;
      for (const auto& row : plan.rows()) expected += row.elements;
      EXPECT_EQ(elements, expected);
    }
  }
}

TEST(PlanBoxes, HoldTheCostOfTheirChildren) {
  const PlanBoxes folded = fold_plan(t5_example(12, 5).plan());
  EXPECT_NEAR(folded.boxes[0].cost, 1, 1e-9);
  for (const PlanBox& box : folded.boxes) {
    if (box.children.empty()) continue;
    double sum = 0;
    for (const int child : box.children) sum += folded.boxes[child].cost;
    EXPECT_NEAR(sum, box.cost, 0.001);
  }
}

TEST(PlanBoxes, ShowTheWeightsOfAModuleWhosePartsAreSpread) {
  TreeBuilder build;
  build.module("outer", 400);
  build.module("outer.a", 400);
  build.module("outer.b", 400);
  const PlanBoxes folded = fold_plan(example_of(build.tree, {0, 0, 0, 1}, 2).plan());
  EXPECT_THAT(whole_names(folded), ElementsAre("outer.a", "outer.b", "outer itself"));
  EXPECT_EQ(modules_in(folded), 4);
}

TEST(PlanBoxes, JoinAnyNeighboursOfOneStageWhereThereAreTooMany) {
  TreeBuilder build;
  std::vector<int> stages = {0};
  for (int i = 0; i < 40; ++i) {
    build.module(base::concat("layer", i), 400);
    stages.push_back(i / 20);
  }
  const PartitionPlan plan = example_of(build.tree, stages, 2).plan();
  EXPECT_THAT(whole_names(fold_plan(plan)), SizeIs(40));
  EXPECT_THAT(whole_names(fold_plan(plan, 20)),
              ElementsAre("layer0 to layer19", "layer20 to layer39"));
  EXPECT_THAT(whole_names(fold_plan(t5_example().plan(), 1)),
              ElementsAre("shared", "encoder.block[0:2]", "encoder.block.2 to encoder.final_norm",
                          "decoder.block.0", "decoder.block.1 to decoder.final_norm", "lm_head"));
}

TEST(PlanBoxes, FallBackToBytesAndThenToNumbers) {
  std::vector<PartitionPlan::Row> rows = {{"", 0, {}, 0, 0, 0, {}, {}, {}},
                                          {"a", 0, {}, 0, 0, 0, {}, {}, {}},
                                          {"b", 1, "weight float32[4]", 4, 16, 0, {}, {}, {}}};
  EXPECT_EQ(fold_plan(PartitionPlan(2, rows)).measure, "bytes of weights");
  rows[2].bytes = 0;
  EXPECT_EQ(fold_plan(PartitionPlan(2, rows)).measure, "modules");
}

TEST(PlanBoxes, LinkTiedWeightsOfDifferentBoxes) {
  const PlanBoxes folded = fold_plan(t5_example().plan());
  ASSERT_EQ(folded.ties.size(), 1u);
  EXPECT_EQ(folded.ties[0].weight, "shared.weight");
  std::vector<std::string> names;
  for (const int box : folded.ties[0].boxes) names.push_back(folded.boxes[box].name);
  EXPECT_THAT(names, ElementsAre("shared", "lm_head"));
}

TEST(PartitionPicture, DrawsHeightsByCost) {
  const PlanBoxes folded = fold_plan(t5_example().plan());
  const auto boxes = elements(draw_partition(t5_example().plan()), "rect", "whole");
  std::size_t next = 0;
  std::map<std::string, double> heights;
  for (const PlanBox& box : folded.boxes) {
    if (box.children.empty()) heights[box.name] = number(boxes.at(next++), "height");
  }
  EXPECT_EQ(next, boxes.size());
  EXPECT_NEAR(heights["encoder.block[2:6]"] / heights["encoder.block[0:2]"], 2, 0.01);
  EXPECT_NEAR(heights["shared"] / heights["encoder.block[0:2]"], 2, 0.01);
}

TEST(PartitionPicture, StacksWholeBoxesWithoutOverlap) {
  for (const auto& [blocks, stages] : {std::pair(12, 4), std::pair(100, 64)}) {
    double bottom = 0;
    for (const auto& box :
         elements(draw_partition(t5_example(blocks, stages).plan()), "rect", "whole")) {
      EXPECT_GE(number(box, "y"), bottom);
      bottom = number(box, "y") + number(box, "height");
    }
  }
}

TEST(PartitionPicture, GivesEveryStageItsColorAndItsCost) {
  const std::string svg = draw_partition(t5_example().plan());
  EXPECT_THAT(texts(svg, "stage_cost"),
              ElementsAre("stage 0: 0.375", "stage 1: 0.313", "stage 2: 0.313"));
  EXPECT_THAT(svg, HasSubstr("Plan by search: 57 modules on 3 stages, each with 0.313 to 0.375 of "
                             "the cost (even: 0.333)"));
  EXPECT_THAT(texts(svg, "tie_name"), ElementsAre("shared.weight"));
}

TEST(PartitionPicture, EscapesAndShortensNames) {
  TreeBuilder build;
  build.module("a<b>&\"" + std::string(200, 'x') + "end", 400);
  build.module("other", 400);
  const std::string svg = draw_partition(example_of(build.tree, {0, 0, 1}, 2).plan());
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("a<b>")));
  for (const std::string& name : texts(svg, "name")) {
    EXPECT_LE(text_length(name, 12), 430 + text_length("&lt;&gt;&amp;&quot;", 12));
  }
  EXPECT_THAT(texts(svg, "name"), Contains(HasSubstr("…")));
}

TEST(PartitionPicture, DrawsAPlanOfManyStagesWithoutALegend) {
  TreeBuilder build;
  std::vector<int> stages = {0};
  for (int i = 0; i < 200; ++i) {
    build.module(base::concat("layer", i), 400);
    stages.push_back(i);
  }
  EXPECT_TRUE(
      texts(draw_partition(example_of(build.tree, stages, 200).plan()), "stage_cost").empty());
}

TEST(FittedText, KeepsBothEnds) {
  EXPECT_EQ(fitted("short", 12, 100), "short");
  EXPECT_EQ(fitted("encoder.block.final", 10, 62), "encod…inal");
  EXPECT_EQ(fitted("äöüäöüäöüäöü", 10, 31), "äö…öü");
  EXPECT_EQ(fitted("anything", 10, 3), "");
}

TEST(MemoryPicture, BarsAddUpToTheMemoryOfTheirStage) {
  const PartitionPlan plan = t5_example().plan();
  const std::string svg = draw_memory(plan);
  std::map<double, double> drawn;  // by row
  for (const char* kind :
       {"weights", "gradients", "optimizer", "activations", "buffers", "at most"}) {
    for (const auto& bar : elements(svg, "rect", kind))
      drawn[number(bar, "y")] += number(bar, "width");
  }
  ASSERT_EQ(drawn.size(), 3u);
  const auto& stages = plan.summary()->stages;
  const double scale = drawn.begin()->second / static_cast<double>(stages[0].most_memory());
  std::size_t stage = 0;
  for (const auto& [y, width] : drawn) {
    EXPECT_NEAR(width, scale * static_cast<double>(stages[stage++].most_memory()), 0.05);
  }
  EXPECT_THAT(texts(svg, "sum"),
              ElementsAre("33.0 MiB", "25.0 MiB to 27.5 MiB", "22.5 MiB to 27.5 MiB"));
}

TEST(MemoryPicture, ShowsLimitsAndWhoIsAboveThem) {
  PlanExample example = t5_example();
  EXPECT_TRUE(elements(draw_memory(example.plan()), "line", "limit").empty());
  example.machine.memory = {32 << 20, 32 << 20, 32 << 20};
  const std::string svg = draw_memory(example.plan());
  EXPECT_EQ(elements(svg, "line", "limit").size(), 3u);
  EXPECT_THAT(texts(svg, "sum"),
              ElementsAre("33.0 MiB of 32.0 MiB", "25.0 MiB to 27.5 MiB", "22.5 MiB to 27.5 MiB"));
  example.machine.memory = {1 << 30, 1 << 30, 1 << 30};
  EXPECT_THAT(draw_memory(example.plan()), HasSubstr("limit 1.0 GiB (beyond the right edge)"));
}

TEST(MemoryPicture, MarksWhatWasMeasured) {
  const PartitionPlan plan = t5_example().plan();
  const std::string svg = draw_memory(plan, {30 << 20, 0, 40 << 20});
  const auto marks = elements(svg, "rect", "measured");
  ASSERT_EQ(marks.size(), 2u) << "nothing is known of stage 1";
  const auto end_of = [&](const char* kind, std::size_t which) {
    const auto bar = elements(svg, "rect", kind).at(which);
    return number(bar, "x") + number(bar, "width");
  };
  const auto middle = [](const std::string& mark) {
    return number(mark, "x") + number(mark, "width") / 2;
  };
  // On the scale of the bars: that of stage 0 ends at its 33 MiB.
  const double left = number(elements(svg, "rect", "weights").at(0), "x");
  const double pixels = (end_of("activations", 0) - left) / 33;  // a MiB
  EXPECT_NEAR(middle(marks[0]), left + 30 * pixels, 0.1);
  EXPECT_NEAR(middle(marks[1]), left + 40 * pixels, 0.1);
  EXPECT_LT(middle(marks[1]), number(elements(svg, "text", "sum").at(0), "x")) << "it is seen";
  // Each on the bar of its stage.
  const auto bars = elements(svg, "rect", "weights");
  EXPECT_NEAR(number(marks[1], "y") - number(bars.at(2), "y"),
              number(marks[0], "y") - number(bars.at(0), "y"), 0.1);
  EXPECT_LT(std::abs(number(marks[0], "y") - number(bars.at(0), "y")), 5);
  EXPECT_THAT(texts(svg, "took"), ElementsAre("30.0 MiB", "40.0 MiB"));
  EXPECT_THAT(svg, HasSubstr(">measured</text>")) << "the legend";
  EXPECT_THAT(svg, HasSubstr("measured: at most 40.0 MiB (stage 2)"));
}

TEST(MemoryPicture, HasRoomForTheWholeLegend) {
  PlanExample example = t5_example();
  example.machine.memory = {32 << 20, 32 << 20, 32 << 20};
  const std::string svg = draw_memory(example.plan(), {1, 1, 1});
  std::smatch match;
  ASSERT_TRUE(std::regex_search(svg, match, std::regex("<text x=\"([0-9.]*)\"[^>]*>limit<")));
  EXPECT_LT(std::stod(match[1]) + text_length("limit", 12), 1000);
}

TEST(MemoryPicture, OfNothingMeasuredIsAsItWas) {
  const PartitionPlan plan = t5_example().plan();
  const std::string svg = draw_memory(plan);
  EXPECT_THAT(svg, Not(HasSubstr("measured")));
  EXPECT_EQ(draw_memory(plan, {0, 0, 0}), svg);
  EXPECT_EQ(draw_memory(plan, {0, 0, 0, 5}), svg) << "the plan has no such stage";
  EXPECT_EQ(elements(draw_memory(plan, {1 << 20}), "rect", "measured").size(), 1u);
}

}  // namespace
}  // namespace smp::report
