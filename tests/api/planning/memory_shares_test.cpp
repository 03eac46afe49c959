// Several models in the memory of the same stages.
#include "api/planning/memory_shares.h"

#include <gmock/gmock.h>

namespace smp {
namespace memory_shares_test {

using testing::ElementsAre;

simulate::Machine two_stages() {
  simulate::Machine machine;
  machine.stages = 2;
  machine.memory = {1000, 600};
  return machine;
}

TEST(MemoryShares, AreInProportionToWhatModelsNeed) {
  EXPECT_THAT(with_part_of_memory(two_stages(), {30, 10}, 0).memory, ElementsAre(750, 450));
  EXPECT_THAT(with_part_of_memory(two_stages(), {30, 10}, 1).memory, ElementsAre(250, 150));
  EXPECT_THAT(with_part_of_memory(two_stages(), {7}, 0).memory, ElementsAre(1000, 600));
  EXPECT_THAT(with_part_of_memory(two_stages(), {0, 0}, 1).memory, ElementsAre(500, 300));
}

PlannedModel that_takes(std::int64_t first, std::int64_t second) {
  PlanSummary summary;
  summary.stages.resize(2);
  summary.stages[0].weights = first;
  summary.stages[1].most_activations = second;
  return {PartitionPlan(2, {}, summary), {}, false};
}

TEST(MemoryShares, LeaveWhatOthersDoNotTake) {
  EXPECT_THAT(memory_left(two_stages(), {that_takes(100, 50), std::nullopt, that_takes(20, 900)}),
              ElementsAre(880, 1));
}

}  // namespace memory_shares_test
}  // namespace smp
