// How steps split their arguments: written, read again, and refused if it is something else.
#include "report/folder/split_table.h"

#include <gmock/gmock.h>

#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

SplitStep example() {
  return {8,
          4,
          {{"0.x", "Double [8, 3]", "along axis 0", ""},
           {"1", "Long [8]", "along axis 0", "non_split = {1}"}}};
}

TEST(SplitTable, IsReadAsItWasWritten) {
  const auto text = split_steps_to_json({example(), {2, 2, {}}});
  const auto steps = split_steps_from_json(text, "arguments.json");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(split_steps_to_json(steps), text);
  EXPECT_EQ(steps[0].arguments[1].hint, "non_split = {1}");
  const auto rows = split_rows(steps);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[2], ElementsAre("8", "4", "1", "Long [8]", "along axis 0", "non_split = {1}"));
}

TEST(SplitTable, OfSomethingElseIsRefused) {
  EXPECT_THAT(refusal([] { split_steps_from_json("{}", "arguments.json"); }),
              HasSubstr("arguments.json"));
  EXPECT_THAT(
      refusal([] { split_steps_from_json(R"({"steps": [{"rows": 1.5}]})", "arguments.json"); }),
      HasSubstr("rows"));
}

TEST(SplitTable, StepsThatDifferInSizesAreAlike) {
  auto other = example();
  other.arguments[0].what = "Double [5, 3]";
  EXPECT_TRUE(schedule::split_alike(example(), other));
  other.arguments[0].what = "Float [8, 3]";
  EXPECT_FALSE(schedule::split_alike(example(), other));
  other = example();
  other.arguments[1].how = "whole";
  EXPECT_FALSE(schedule::split_alike(example(), other));
  EXPECT_EQ(to_text(example()),
            "a step split its batch of 8 rows into 4 microbatches: argument 0.x, Double [8, 3], "
            "along axis 0; argument 1, Long [8], along axis 0 (non_split = {1})");
}

}  // namespace
}  // namespace smp::report
