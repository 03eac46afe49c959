// The bubble of a step beside others.
#include "report/analysis/bubble_table.h"

#include <gmock/gmock.h>

#include <utility>

namespace smp::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StepTimeline step(std::size_t ranks, int microbatches) {
  StepTimeline timeline;
  timeline.ranks.resize(ranks);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    timeline.ranks.back().spans.push_back({0, 1, 1, microbatch, -1, schedule::Phase::kForward});
  }
  return timeline;
}

TEST(IdealBubble, IsThatOfEqualStages) {
  EXPECT_DOUBLE_EQ(ideal_bubble(step(4, 8)).value(), 3.0 / 11);
  EXPECT_EQ(ideal_bubble(step(1, 8)), 0.0);
  EXPECT_EQ(ideal_bubble(step(1, 0)), 0.0) << "of a step that was cut short";
  EXPECT_EQ(ideal_bubble({}), std::nullopt);
}

std::string table_of(const Bubbles& bubbles) {
  HtmlPage page("");
  add_bubbles(page, bubbles);
  return std::move(page).finish();
}

TEST(BubbleTable, HasARowForEachThatIsKnown) {
  EXPECT_THAT(table_of({0.5, 0.25, 0.125}),
              AllOf(HasSubstr("<th>measured</th><td>50.0 %</td>"),
                    HasSubstr("<th>simulated</th><td>25.0 %</td>"),
                    HasSubstr("<th>of equal stages without any delay</th><td>12.5 %</td>")));
  EXPECT_THAT(table_of({{}, 0.25, 0.125}), Not(HasSubstr("measured")));
  EXPECT_THAT(table_of({0.5, {}, 0.125}), Not(HasSubstr("simulated")));
  EXPECT_THAT(table_of({0.5, 0.25, {}}), Not(HasSubstr("<table>")));
}

}  // namespace
}  // namespace smp::report
