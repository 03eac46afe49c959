// What each stage holds, counted by hand.
#include "partition/model/memory_model.h"

#include <gtest/gtest.h>

#include "partition/model/cost_tree.h"
#include "partition/model/count_trace.h"
#include "partition/search/memory_bound.h"
#include "partition/search/tree_builder.h"
#include "support/model_families.h"

namespace smp::partitioning {
namespace {

TEST(MemoryModel, AddsUpWhatAStageHolds) {
  TreeBuilder build;
  build.module("first", 400);
  build.module("second", 80);
  build.module("third", 20);
  build.tree.nodes[3].buffer_bytes = 7;
  const auto memory = predict_memory(build.tree, {0, 0, 1, 1}, {{1000, 50}, {1300, 40}}, 2);
  ASSERT_EQ(memory.size(), 2u);
  EXPECT_EQ(memory[0].weights, 400);
  EXPECT_EQ(memory[0].gradients, 400);
  EXPECT_EQ(memory[0].optimizer, 800);
  EXPECT_EQ(memory[0].buffers, 0);
  EXPECT_EQ(memory[0].activations, 1000);
  EXPECT_EQ(memory[0].usual(), 2600);
  EXPECT_EQ(memory[0].most(), 2900);
  EXPECT_EQ(memory[1].usual(), 4 * 100 + 7 + 50);
  EXPECT_EQ(memory[1].most(), memory[1].usual()) << "what was seen is possible";
}

TEST(MemoryModel, TellsWhoseBackwardMakesTheGradientsOfWhichWeights) {
  TreeBuilder build;
  build.module("called", 400);
  const auto inner = build.tree.add("called.norm", 1);
  TreeParameter weight;
  weight.name = "called.norm.weight";
  weight.bytes = weight.gradient_bytes = 8;
  build.tree.parameters.push_back(weight);
  build.tree.nodes[inner].parameters.push_back({"weight", 1});
  simulate::Trace trace;
  trace.calls = {{.module = 0}, {.module = 1, .caller = 0}};
  trace.foreign_uses = {{0, 1}};
  const auto gradients = weight_gradients(build.tree, trace);
  EXPECT_EQ(gradients.bytes, (std::vector<std::int64_t>{400, 8}));
  EXPECT_EQ(gradients.of_module[1], (std::vector<int>{0, 1})) << "its own, and of a part of it";
  EXPECT_EQ(gradients.of_module[inner], std::vector<int>());
  EXPECT_EQ(gradients.of_module[0], std::vector<int>{1}) << "read by the model itself";
}

TEST(MemoryModel, GivesFrozenWeightsNeitherGradientsNorOptimizerState) {
  TreeBuilder build;
  build.module("trained", 400);
  build.module("frozen", 80);
  build.tree.parameters[1].gradient_bytes = 0;
  const auto memory = predict_memory(build.tree, {0, 0, 0}, {{0}, {0}}, 2);
  EXPECT_EQ(memory[0].weights, 480);
  EXPECT_EQ(memory[0].gradients, 400);
  EXPECT_EQ(memory[0].optimizer, 800);
}

TEST(MemoryModel, CountsThePartOfTheOptimizersStateThatARankKeeps) {
  TreeBuilder build;
  build.module("slice", 400);
  build.module("whole", 80);
  build.tree.parameters[0].state_shares = 2;
  build.tree.parameters[1].state_shares = 8;
  const auto memory = predict_memory(build.tree, {0, 0, 0}, {{0}, {0}}, 2);
  EXPECT_EQ(memory[0].gradients, 480);
  EXPECT_EQ(memory[0].optimizer, 2 * (400 + 80)) << "of each one rank has all";
  build.module("slice too", 300);
  build.module("a third", 200);
  for (const int number : {2, 3}) build.tree.parameters[number].state_shares = 2;
  const auto even = predict_memory(build.tree, {0, 0, 0, 0, 0}, {{0}, {0}}, 2);
  EXPECT_EQ(even[0].optimizer, 2 * (300 + 200 + 80)) << "400 on one of two ranks, 500 on the other";
  const auto costs =
      make_cost_tree(build.tree, count_trace(build.tree), nothing_fixed(build.tree), {});
  EXPECT_EQ(state_bytes(costs.nodes[1], 2, 1), 400 + 400 + 2 * 200);
}

/// Replicas add up gradients aside until the end of the step.
TEST(MemoryModel, CountsSumsOverReplicasBesideTheGradients) {
  TreeBuilder build;
  build.module("trained", 400);
  const auto memory = predict_memory(build.tree, {0, 0}, {{0}, {0}}, 2, /*gradient_copies=*/2);
  EXPECT_EQ(memory[0].gradients, 800);
  EXPECT_EQ(memory[0].sums, 400);
  EXPECT_EQ(memory[0].optimizer, 800) << "of the gradients themselves";
  EXPECT_EQ(state_bytes(build.tree, 2, 2), 2000);
}

/// Where the parameter is stepped.
TEST(MemoryModel, CountsSumsForOwnersOnTheRankThatKeepsMost) {
  TreeBuilder build;
  for (const auto bytes : {400, 300, 200}) build.module("m" + std::to_string(bytes), bytes);
  for (auto& parameter : build.tree.parameters) parameter.state_shares = 2;
  const auto memory =
      predict_memory(build.tree, {0, 0, 0, 0}, {{0}, {0}}, 1, /*gradient_copies=*/2);
  EXPECT_EQ(memory[0].sums, 500) << "300 and 200 on one of two ranks";
  EXPECT_EQ(memory[0].gradients, 900 + 500);
  EXPECT_EQ(memory[0].optimizer, 500);
  const auto costs =
      make_cost_tree(build.tree, count_trace(build.tree), nothing_fixed(build.tree), {});
  EXPECT_EQ(state_bytes(costs.nodes[1], 1, 2), 400 + 400 + 200 + 200);
}

TEST(MemoryModel, CountsSmallBuffersOnEveryStage) {
  TreeBuilder build;
  build.module("only", 4);
  build.tree.common_bytes = 30;
  build.tree.nodes[1].buffer_bytes = 500;
  const auto memory = predict_memory(build.tree, {0, 1}, {{0, 0}, {0, 0}}, 0);
  EXPECT_EQ(memory[0].buffers, 30);
  EXPECT_EQ(memory[1].buffers, 530);
}

TEST(MemoryModel, KnowsWhatEachOptimizerKeeps) {
  TreeBuilder build;
  build.module("only", 100);
  const auto optimizer = [&](double ratio) {
    return predict_memory(build.tree, {0, 0}, {{0}, {0}}, ratio)[0].optimizer;
  };
  EXPECT_EQ(optimizer(0), 0);
  EXPECT_EQ(optimizer(1), 100);
  EXPECT_EQ(optimizer(2), 200);
  EXPECT_EQ(optimizer(0.5), 50);
}

TEST(MemoryModel, CountsATiedWeightOnce) {
  const ModuleTree tree = encoder_decoder(1, 1000, 200, true);
  const auto memory = predict_memory(tree, std::vector<int>(tree.nodes.size(), 0), {{0}, {0}}, 0);
  EXPECT_EQ(memory[0].weights, tree.total_bytes());
}

TEST(MemoryModel, LosesNothingWhereverModulesLie) {
  for (const std::string& family : family_names()) {
    const ModuleTree tree = family_member(family, 11).tree;
    std::vector<int> stages;
    for (std::size_t i = 0; i < tree.nodes.size(); ++i) stages.push_back(static_cast<int>(i % 5));
    std::int64_t sum = 0;
    for (const StageMemory& stage :
         predict_memory(tree, stages, {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}, 0)) {
      sum += stage.weights;
    }
    EXPECT_EQ(sum, tree.total_bytes()) << family;
  }
}

}  // namespace
}  // namespace smp::partitioning
