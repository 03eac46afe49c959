// Stages that may hold only so much: plans that keep to it, and what is said if none does.
#include <gmock/gmock.h>

#include "partition/planning.h"
#include "partition/tree_builder.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Partitioner, KeepsStagesWithinTheirMemory) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 4, 8);
  const auto free = make_plan(model.tree, options);
  options.machine.memory.assign(4, 0);
  for (int s = 0; s < 4; ++s) {
    options.machine.memory[s] = free.summary()->stages[s].most_memory() * (s == 1 ? 9 : 12) / 10;
  }
  const auto capped = make_plan(model.tree, options);
  for (int s = 0; s < 4; ++s) {
    EXPECT_LE(capped.summary()->stages[s].most_memory(), options.machine.memory[s]);
  }
  EXPECT_NE(capped.to_json(), free.to_json());
}

TEST(Partitioner, SaysWhoLacksHowMuchMemoryAndWhatWouldHelp) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 16);
  options.machine.memory = {800 << 20, 800 << 20};
  const std::string text = refusal_of<ResourceError>(model.tree, options);
  EXPECT_THAT(text, AllOf(HasSubstr("the model does not fit: however it is cut, some stage needs "),
                          HasSubstr(" times its memory or more\n  stage 0 needs "),
                          HasSubstr(" and may use 800.0 MiB, "), HasSubstr("too little (weights"),
                          HasSubstr("what would help:\n  - more stages: the model needs ")));
  EXPECT_THAT(text, HasSubstr("active_microbatches = "));
}

TEST(Partitioner, NamesRemediesThatReallyHelp) {
  const SyntheticModel model = flat_gpt({.layers = 8, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 16);
  const PartitionPlan plan = make_plan(model.tree, options);
  for (const auto& stage : plan.summary()->stages) {
    options.machine.memory.push_back(stage.most_memory() - stage.optimizer * 9 / 10);
  }
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              HasSubstr("an optimizer without state"));
  options.optimizer_ratio = 0;
  EXPECT_EQ(refusal_of<ResourceError>(model.tree, options), "accepted");
}

TEST(Partitioner, NamesAModuleThatNoStageCanHold) {
  const SyntheticModel model = nested_gpt({.layers = 2, .width = 256});
  PartitionOptions options = traced(model, 4, 4);
  options.machine.memory.assign(4, 100 << 20);
  EXPECT_THAT(refusal_of<ResourceError>(model.tree, options),
              AllOf(HasSubstr("\"transformer.wte\" and what shares its weights needs 195.3 MiB, "
                              "more than any stage may use"),
                    testing::Not(HasSubstr("more stages:"))));
}

/// 7, 5, 4 and 4 units in two stages of 10, trained by SGD: no bound excludes it, no placement
/// fits.
TreeBuilder four_modules() {
  TreeBuilder build;
  for (const int units : {7, 5, 4, 4}) {
    build.module("m" + std::to_string(build.tree.nodes.size()), 400 * units);
  }
  return build;
}

PartitionOptions ten_units_each() {
  PartitionOptions options = on_stages(2);
  options.optimizer_ratio = 0;
  options.machine.memory.assign(2, 8000);
  return options;
}

TEST(Partitioner, ClaimsNoProofWhereItHasNone) {
  const auto build = four_modules();
  auto options = ten_units_each();
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              HasSubstr("no placement was found that fits, which is no proof that there is none"));
  for (auto& limit : options.machine.memory) limit = 7999;
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options), HasSubstr("however it is cut"));
  for (auto& limit : options.machine.memory) limit = 8800;
  EXPECT_EQ(refusal_of<ResourceError>(build.tree, options), "accepted") << "7 + 4, 5 + 4";
}

TEST(Partitioner, SaysThatAPlacementByHandDoesNotFit) {
  const auto build = four_modules();
  auto options = ten_units_each();
  options.pins = {{"", 0, "a test"}};
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              HasSubstr("the model does not fit as it is placed by hand:\n  stage 0 needs "));
}

TEST(Partitioner, MakesThePlanThatLacksLeastWhereLimitsAreNotRefused) {
  const auto build = four_modules();
  auto options = ten_units_each();
  options.refuse_unfit = false;
  const auto plan = make_plan(build.tree, options);
  std::int64_t most = 0;
  for (const auto& stage : plan.summary()->stages) most = std::max(most, stage.most_memory());
  EXPECT_EQ(most, 8800);
}

TEST(Partitioner, NeedsNoRoomForGradientsOfFrozenWeights) {
  auto build = four_modules();
  auto options = ten_units_each();
  options.machine.memory.assign(2, 4400);
  EXPECT_NE(refusal_of<ResourceError>(build.tree, options), "accepted");
  for (auto& parameter : build.tree.parameters) parameter.gradient_bytes = 0;
  EXPECT_EQ(refusal_of<ResourceError>(build.tree, options), "accepted");
}

}  // namespace
}  // namespace smp::partitioning
