// No placement needs less than the bound says: against all of them.
#include "partition/search/memory_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "partition/search/random_tree.h"
#include "partition/search/tree_builder.h"
#include "schedule/schedule.h"

namespace smp::partitioning {
namespace {

simulate::Machine with_memory(std::vector<std::int64_t> memory) {
  simulate::Machine machine;
  machine.stages = static_cast<int>(memory.size());
  machine.memory = std::move(memory);
  return machine;
}

/// Of which the bound knows nothing.
void forget_messages(simulate::Trace& trace) {
  for (auto& call : trace.calls) call.input_bytes = call.output_bytes = 0;
}

/// The worst stage's share of the memory that common buffers leave.
double share_of(const Judgement& judgement, const simulate::Machine& machine, std::int64_t common) {
  double worst = 0;
  for (int stage = 0; stage < machine.stages; ++stage) {
    worst = std::max(worst, static_cast<double>(judgement.memory[stage].most() - common) /
                                static_cast<double>(machine.memory[stage] - common));
  }
  return worst;
}

/// Of the best placement: all are tried.
double least_share(const StepJudge& judge, const CostTree& costs, const simulate::Machine& machine,
                   std::int64_t common) {
  std::vector<int> stages;
  for (const CostNode& node : costs.nodes) stages.push_back(std::max(node.fixed, 0));
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    least = std::min(least, share_of(judge.judge(stages, 1), machine, common));
    std::size_t next = 0;
    for (; next < stages.size(); ++next) {
      if (costs.nodes[next].fixed >= 0) continue;
      if (++stages[next] < machine.stages) break;
      stages[next] = 0;
    }
    if (next == stages.size()) return least;
  }
}

TEST(MemoryBound, IsBelowTheBestOfAllPlacements) {
  int tight = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    auto model = random_model(seed, {.modules = 6, .pinned_stages = seed % 3 == 0 ? 1 : 0});
    model.tree.common_bytes = 500 * static_cast<std::int64_t>(seed % 4);
    for (auto& parameter : model.tree.parameters) {
      if ((parameter.elements + static_cast<int>(seed)) % 4 == 0) parameter.gradient_bytes = 0;
    }
    model.tree.nodes[1].buffer_bytes = 4000;
    const auto costs = make_cost_tree(model.tree, model.trace, model.fixed, {});
    const auto machine = with_memory({900'000, 700'000});
    const bool simple = seed % 2 == 0;
    if (simple) forget_messages(model.trace);
    const auto schedule =
        schedule::make_schedule(simple ? "simple" : "1f1b", {.pp_size = 2, .microbatches = 3});
    const StepSettings settings{3, schedule.get(), seed % 4 < 2 ? 2.0 : 0.0};
    const StepJudge judge(model.tree, model.trace, costs, machine, settings);
    const double bound = memory_lower_bound(model.tree, costs, machine, settings);
    const double least = least_share(judge, costs, machine, model.tree.common_bytes);
    EXPECT_LE(bound, least + 1e-6) << "seed " << seed;
    if (bound > 0.9 * least) ++tight;
  }
  EXPECT_GE(tight, 15) << "a bound that says little is of no use";
}

TEST(MemoryBound, CountsStateAsItIsTrained) {
  TreeBuilder build;
  build.module("trained", 100);
  const int frozen = build.module("frozen", 100);
  build.tree.parameters[1].gradient_bytes = 0;
  build.tree.nodes[frozen].buffer_bytes = 7;
  const auto costs = make_cost_tree(build.tree, {}, nothing_fixed(build.tree), {});
  EXPECT_EQ(state_bytes(costs.nodes[costs.node_of_module[1]], 2), 400);
  EXPECT_EQ(state_bytes(costs.nodes[costs.node_of_module[2]], 2), 107);
}

TEST(MemoryBound, IsInfiniteWhereNotEvenCommonBuffersFit) {
  TreeBuilder build;
  build.module("only", 100);
  build.tree.common_bytes = 1000;
  const auto costs = make_cost_tree(build.tree, {}, nothing_fixed(build.tree), {});
  const auto schedule = schedule::make_schedule("simple", {});
  EXPECT_EQ(memory_lower_bound(build.tree, costs, with_memory({900}), {1, schedule.get(), 0}),
            std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace smp::partitioning
