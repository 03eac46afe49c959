// Which names the modules of a stage get.
#include "partition/plan/stage_modules.h"

#include <gmock/gmock.h>

#include "partition/plan/plan_example.h"

namespace smp::partitioning {
namespace {

using testing::ElementsAre;

TEST(StageModules, AreTheOutermostAsRanges) {
  const auto modules = modules_of_stages(t5_example().plan());
  EXPECT_THAT(modules[0], ElementsAre("shared", "encoder.block[0:2]", "lm_head"));
  EXPECT_THAT(modules[1],
              ElementsAre("encoder.block[2:6]", "encoder.final_norm", "decoder.block.0"));
  EXPECT_THAT(modules[2], ElementsAre("decoder.block[1:6]", "decoder.final_norm"));
}

TEST(StageModules, JoinThreeAndMoreSiblings) {
  TreeBuilder build;
  build.module("a");
  for (const char* name : {"a.x", "a.y", "a.z", "a.w"}) build.module(name, 400);
  build.module("b");
  for (const char* name : {"b.0", "b.1", "b.3", "b.4", "b.x"}) build.module(name, 400);
  const std::vector<int> stages = {0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0};
  EXPECT_THAT(modules_of_stages(plan_of(build.tree, stages, 2))[1],
              ElementsAre("a.{x, y, z}", "b[0:2]", "b[3:5]"));
  EXPECT_THAT(modules_of_stages(plan_of(build.tree, stages, 2))[0], ElementsAre("a.w", "b.x"));
}

TEST(StageModules, AreTheModelIfItIsWhole) {
  EXPECT_THAT(modules_of_stages(t5_example(2, 1).plan())[0], ElementsAre("the model"));
}

TEST(StageModules, MentionParametersOfAModuleWhosePartsAreSpread) {
  TreeBuilder build;
  build.module("first", 400);
  build.module("second", 400);
  build.weight(0, "bias", 8);
  EXPECT_THAT(modules_of_stages(plan_of(build.tree, {0, 0, 1}, 2))[0],
              ElementsAre("the model (its own parameters)", "first"));
}

}  // namespace
}  // namespace smp::partitioning
