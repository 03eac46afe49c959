// The work of an accumulator is linear in what it is given, whatever the order of arrival.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "server/sums/gradient_accumulator.h"
#include "server/sums/gradient_accumulator_testing.h"

namespace smp::server::test {
namespace gradient_accumulator_effort_test {

using testing::ElementsAre;

class GradientAccumulatorEffortTest : public GradientAccumulatorTest,
                                      public testing::WithParamInterface<std::string> {
 protected:
  std::vector<int> some_order(int calls) const {
    std::vector<int> order(static_cast<std::size_t>(calls));
    std::iota(order.begin(), order.end(), 0);
    if (GetParam() == "Descending") std::reverse(order.begin(), order.end());
    if (GetParam() == "Random") std::shuffle(order.begin(), order.end(), std::mt19937(7));
    return order;
  }
};
INSTANTIATE_TEST_SUITE_P(Orders, GradientAccumulatorEffortTest,
                         testing::Values("Ascending", "Descending", "Random"),
                         [](const auto& info) { return info.param; });

/// One module called often: each close concerns few, whatever else waits.
TEST_P(GradientAccumulatorEffortTest, IsLinearInTheCalls) {
  constexpr int kCalls = 1000;
  std::mt19937 random(1);
  std::vector<ExecutionId> ids;
  std::vector<float> gradients;
  for (int call = 0; call < kCalls; ++call) {
    ids.push_back(
        record_reaching({&weight_, &other_}, 0, call_path({static_cast<std::uint32_t>(call)})));
    gradients.push_back(std::ldexp(1.0F, static_cast<int>(random() % 60)));
  }
  accumulator_.mark_forward_done(0);
  for (const int call : some_order(kCalls)) {
    put(ids[call], weight_, gradients[call]);
    put(ids[call], other_, gradients[call]);
    accumulator_.close(ids[call]);
  }
  const float sum = std::accumulate(gradients.rbegin(), gradients.rend(), 0.0F);
  EXPECT_THAT(weight_.applied, ElementsAre(sum));
  EXPECT_THAT(other_.applied, ElementsAre(sum));
  EXPECT_LE(accumulator_.effort().pairs, 5u * 2 * kCalls);
  EXPECT_LE(accumulator_.effort().walks, std::uint64_t{kCalls});
}

/// Many modules on one rank: no parameter looks at executions that do not reach it.
TEST_P(GradientAccumulatorEffortTest, IsLinearInWhatExecutionsReach) {
  constexpr int kModules = 500;
  std::vector<std::unique_ptr<Watched>> weights;
  std::vector<ExecutionId> ids;
  for (int module = 0; module < kModules; ++module) {
    weights.push_back(std::make_unique<Watched>());
    const auto place = call_path({static_cast<std::uint32_t>(module)});
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      ids.push_back(record_reaching({weights.back().get()}, microbatch, place));
    }
  }
  accumulator_.mark_forward_done(0);
  accumulator_.mark_forward_done(1);
  for (const int module : some_order(kModules)) {
    for (int microbatch = 1; microbatch >= 0; --microbatch) {
      const auto id = ids[static_cast<std::size_t>(2 * module + microbatch)];
      put(id, *weights[static_cast<std::size_t>(module)], static_cast<float>(1 + microbatch));
      accumulator_.close(id);
    }
  }
  for (const auto& weight : weights) EXPECT_THAT(weight->applied, ElementsAre(1, 2));
  EXPECT_LE(accumulator_.effort().pairs, 5u * 2 * kModules);
  EXPECT_LE(accumulator_.effort().walks, 2u * kModules);
}

}  // namespace gradient_accumulator_effort_test
}  // namespace smp::server::test
