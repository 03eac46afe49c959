// Who is told that a machine has too little memory for its ranks.
#include "api/planning/memory_guard.h"

#include <gmock/gmock.h>

namespace smp {
namespace memory_guard_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::vector<PartitionPlan::Row> rows() {
  std::vector<PartitionPlan::Row> rows(2);
  rows[1].path = "far";
  rows[1].pp_rank = 1;
  return rows;
}

/// A model of two stages that need 3 and 5 GiB.
std::vector<PlannedModel> planned() {
  PlanSummary summary;
  summary.stages.resize(2);
  summary.stages[0].weights = 3 * kGiB;
  summary.stages[1].weights = 4 * kGiB;
  summary.stages[1].activations = kGiB;
  return {{PartitionPlan(2, rows(), summary), {}, false}};
}

TEST(MemoryGuard, SaysWhatIsNeededAndWhatIsThere) {
  EXPECT_THAT(too_little_memory(planned(), {0, 1}, 6 * kGiB).value_or("nothing"),
              AllOf(HasSubstr("needs about 8.0 GiB"), HasSubstr("for 2 of its ranks"),
                    HasSubstr("it has 6.0 GiB"), HasSubstr("active_microbatches")));
}

TEST(MemoryGuard, CountsTheStagesOfThisMachineOnly) {
  EXPECT_FALSE(too_little_memory(planned(), {1}, 6 * kGiB));
  EXPECT_TRUE(too_little_memory(planned(), {1, 1}, 6 * kGiB));  // two replicas
}

TEST(MemoryGuard, IsSilentWhereNothingIsKnown) {
  EXPECT_FALSE(too_little_memory(planned(), {0, 1}, 0));
  EXPECT_FALSE(too_little_memory({{PartitionPlan(2, rows()), {}, false}}, {0, 1}, 1));
}

}  // namespace memory_guard_test
}  // namespace smp
