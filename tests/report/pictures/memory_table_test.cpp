// What each stage took beside what was predicted of it.
#include "report/pictures/memory_table.h"

#include <gmock/gmock.h>

#include "partition/plan/plan_example.h"

namespace smp::report {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(MemoryTable, HasARowAStage) {
  const auto plan = partitioning::t5_example().plan();
  EXPECT_THAT(memory_rows({30 << 20, 0, 40 << 20}, &*plan.summary()),
              ElementsAre(ElementsAre("memory", "measured", "predicted", "at most"),
                          ElementsAre("stage 0", "30.0 MiB", "33.0 MiB", "33.0 MiB"),
                          ElementsAre("stage 1", "-", "25.0 MiB", "27.5 MiB"),
                          ElementsAre("stage 2", "40.0 MiB", "22.5 MiB", "27.5 MiB")));
}

TEST(MemoryTable, GoesAsFarAsOneOfBothIsKnown) {
  EXPECT_THAT(memory_rows({}, nullptr), IsEmpty());
  EXPECT_THAT(memory_rows({1 << 20}, nullptr).back(), ElementsAre("stage 0", "1.0 MiB", "-", "-"));
  const auto plan = partitioning::t5_example().plan();
  EXPECT_THAT(memory_rows({1 << 20}, &*plan.summary()).back(),
              ElementsAre("stage 2", "-", "22.5 MiB", "27.5 MiB"));
  EXPECT_THAT(memory_rows({1, 1, 1, 7}, &*plan.summary()).back(),
              ElementsAre("stage 3", "7 B", "-", "-"));
}

}  // namespace
}  // namespace smp::report
