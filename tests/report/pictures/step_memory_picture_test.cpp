// The series of a step's memory: every peak is drawn, and the lanes of all stages have one scale.
#include "report/pictures/step_memory_picture.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "partition/plan/plan_example.h"
#include "report/page/svg_writer.h"
#include "report/svg_reader.h"

namespace smp::report {
namespace {

using partitioning::PlanExample;
using partitioning::StepMemory;
using partitioning::t5_example;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kMiB = 1 << 20;

/// Where a line goes, from its attribute "points".
std::vector<Point> corners_of(const std::string& tag) {
  std::smatch match;
  std::regex_search(tag, match, std::regex(" points=\"([^\"]*)\""));
  std::string numbers = match[1];
  std::replace(numbers.begin(), numbers.end(), ',', ' ');
  std::istringstream in(numbers);
  std::vector<Point> corners;
  for (Point point; in >> point.x >> point.y;) corners.push_back(point);
  return corners;
}

TEST(StepMemory, AColumnHasTheMostOfItsMoments) {
  EXPECT_THAT(most_by_column({}, 100, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(most_by_column({{0, 5, 5}}, 100, 4), ElementsAre(5, 5, 5, 5));
  // A moment's own need is seen where it is, and what stays from there on.
  EXPECT_THAT(most_by_column({{10, 5, 9}, {60, 0, 5}}, 100, 4), ElementsAre(9, 5, 5, 0));
  // What comes and goes within a column is seen.
  EXPECT_THAT(most_by_column({{30, 7, 7}, {31, 1, 7}, {99, 0, 1}}, 100, 4),
              ElementsAre(0, 7, 1, 1));
  // The end of the step is in the last column.
  EXPECT_THAT(most_by_column({{100, 3, 4}}, 100, 2), ElementsAre(0, 4));
}

/// Of three stages; the second one's activations are 6 MiB at their most.
StepMemory memory_of(std::int64_t held) {
  StepMemory memory{1'000'000, {{{0, kMiB, 2 * kMiB}}, {{250'000, kMiB, 6 * kMiB}}, {}}, {}};
  if (held > 0) memory.held = {{{0, held, held}}, {}, {}};
  return memory;
}

TEST(StepMemory, LanesHaveOneScale) {
  const auto plan = t5_example().plan();
  const auto svg = draw_step_memory(plan, memory_of(0));
  const auto fixed = elements(svg, "rect", "fixed");
  const auto live = elements(svg, "polyline", "live");
  ASSERT_EQ(fixed.size(), 3u);
  ASSERT_EQ(live.size(), 3u);
  const auto& stages = plan.summary()->stages;
  std::vector<std::int64_t> always;
  for (const auto& stage : stages) always.push_back(stage.memory() - stage.activations);
  const double pixels = number(fixed[0], "height") / static_cast<double>(always[0]);  // a byte
  const std::vector<std::int64_t> peaks{2 * kMiB, 6 * kMiB, 0};
  for (std::size_t stage = 0; stage < 3; ++stage) {
    EXPECT_NEAR(number(fixed[stage], "height"), pixels * static_cast<double>(always[stage]), 0.02);
    const double base = number(fixed[stage], "y");
    double highest = base;
    for (const auto& corner : corners_of(live[stage])) highest = std::min(highest, corner.y);
    EXPECT_NEAR(base - highest, pixels * static_cast<double>(peaks[stage]), 0.02) << stage;
  }
  EXPECT_THAT(texts(svg, "stage"), ElementsAre("stage 0", "stage 1", "stage 2"));
  EXPECT_THAT(svg, Not(HasSubstr("computed again")));
}

/// A quarter of the step has passed when its activations come.
TEST(StepMemory, TimeGoesFromLeftToRight) {
  const auto svg = draw_step_memory(t5_example().plan(), memory_of(0));
  const auto bar = elements(svg, "rect", "fixed").at(1);
  const auto corners = corners_of(elements(svg, "polyline", "live").at(1));
  const double left = number(bar, "x"), width = number(bar, "width"), base = number(bar, "y");
  ASSERT_GT(corners.size(), 4u);
  EXPECT_NEAR(corners[1].x, left + width / 4, 1.01);
  EXPECT_EQ(corners[1].y, base);
  EXPECT_LT(corners[2].y, corners[4].y) << "first the most of the moment, then what stays";
  EXPECT_NEAR(corners.back().x, left + width, 0.01);
  EXPECT_EQ(corners.back().y, base) << "an area ends on its floor";
}

TEST(StepMemory, ShowsWhatWouldBeHeld) {
  const auto svg = draw_step_memory(t5_example().plan(), memory_of(9 * kMiB));
  const auto held = elements(svg, "polyline", "held");
  ASSERT_EQ(held.size(), 3u);
  const double base = number(elements(svg, "rect", "fixed").at(0), "y");
  double highest_live = base, highest_held = base;
  for (const auto& corner : corners_of(elements(svg, "polyline", "live").at(0))) {
    highest_live = std::min(highest_live, corner.y);
  }
  for (const auto& corner : corners_of(held[0])) highest_held = std::min(highest_held, corner.y);
  EXPECT_NEAR((base - highest_held) / (base - highest_live), 4.5, 0.02);
  EXPECT_THAT(svg, HasSubstr("if nothing were computed again"));
}

TEST(StepMemory, ShowsLimitsThatAreNear) {
  PlanExample example = t5_example();
  EXPECT_TRUE(elements(draw_step_memory(example.plan(), memory_of(0)), "line", "limit").empty());
  example.machine.memory = {48 * kMiB, 48 * kMiB, 48 * kMiB};
  EXPECT_EQ(elements(draw_step_memory(example.plan(), memory_of(0)), "line", "limit").size(), 3u);
  example.machine.memory = {1 << 30, 1 << 30, 1 << 30};
  EXPECT_TRUE(elements(draw_step_memory(example.plan(), memory_of(0)), "line", "limit").empty());
}

}  // namespace
}  // namespace smp::report
