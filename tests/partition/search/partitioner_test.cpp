// The default split and placement by hand.
#include "partition/search/partitioner.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "partition/model/count_trace.h"
#include "partition/search/tree_builder.h"
#include "simulate/device_profile.h"
#include "support/model_families.h"
#include "trial/planning.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::map<std::string, int> stages(const PartitionPlan& plan) {
  std::map<std::string, int> found;
  for (const auto& row : plan.rows()) found[row.path] = row.pp_rank;
  return found;
}

TreeBuilder chain(int modules, std::int64_t bytes) {
  TreeBuilder build;
  for (int i = 0; i < modules; ++i) build.module(std::to_string(i), bytes);
  return build;
}

TEST(Partitioner, PutsEverythingOnTheOnlyStage) {
  EXPECT_THAT(stages(make_plan(encoder_decoder(2, 64, 64, true), on_stages(1))),
              Each(Pair(testing::_, 0)));
}

TEST(Partitioner, CutsAChainIntoEqualRuns) {
  EXPECT_THAT(stages(make_plan(chain(8, 100).tree, on_stages(4))),
              ElementsAre(Pair("", 0), Pair("0", 0), Pair("1", 0), Pair("2", 1), Pair("3", 1),
                          Pair("4", 2), Pair("5", 2), Pair("6", 3), Pair("7", 3)));
}

TEST(Partitioner, SpreadsModulesWithoutParametersByTheirNumber) {
  const auto placed = stages(make_plan(chain(8, 0).tree, on_stages(4)));
  std::vector<int> counts(4, 0);
  for (const auto& [path, stage] : placed) ++counts.at(static_cast<std::size_t>(stage));
  // The model itself is the ninth, on stage 0; any stage may be the one with three.
  std::sort(counts.begin(), counts.end());
  EXPECT_THAT(counts, ElementsAre(2, 2, 2, 3));
  EXPECT_EQ(placed.at("0"), 0);
  EXPECT_EQ(placed.at("7"), 3);
}

TEST(Partitioner, OpensLargeModulesAndKeepsSmallOnesWhole) {
  const PartitionPlan plan = make_plan(encoder_decoder(6, 400, 400, false), on_stages(4));
  const auto placed = stages(plan);
  for (const auto& [path, stage] : placed) {
    const auto attention = path.find(".attention");
    if (attention == std::string::npos) continue;
    EXPECT_EQ(stage, placed.at(path.substr(0, attention))) << path;
  }
  const auto bytes = bytes_per_stage(plan);
  EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), 1650);
}

TEST(Partitioner, OpensWhatItMustWhenThereAreManyStages) {
  const auto placed = stages(make_plan(encoder_decoder(1, 4, 400, true), on_stages(5)));
  std::set<int> used;
  for (const auto& [path, stage] : placed) used.insert(stage);
  EXPECT_EQ(used.size(), 5u);
  EXPECT_NE(placed.at("encoder.block.0.attention"), placed.at("encoder.block.0.feed_forward"));
}

TEST(Partitioner, KeepsTiedWeightsTogether) {
  for (int pp_size = 1; pp_size <= 6; ++pp_size) {
    const PartitionPlan plan = make_plan(encoder_decoder(3, 1000, 200, true), on_stages(pp_size));
    EXPECT_EQ(plan.stage_of("shared"), plan.stage_of("lm_head"));
  }
}

TEST(Partitioner, KeepsWeightsTiedToTheModelItselfOnItsStage) {
  TreeBuilder build = chain(4, 100);
  const int table = build.weight(0, "table", 40);
  build.tie(build.module("head"), table);
  EXPECT_EQ(make_plan(build.tree, on_stages(2)).stage_of("head"), 0);
}

TEST(Partitioner, LeavesALonelyDropoutWithItsParentButNotInASequential) {
  TreeBuilder build;
  build.module("first", 400);
  build.module("dropout");
  build.module("second", 400);
  EXPECT_EQ(make_plan(build.tree, on_stages(2)).stage_of("dropout"), 0);

  TreeBuilder ordered;
  ordered.module("layers");
  ordered.tree.nodes[1].sequential = true;
  for (const char* name : {"layers.0", "layers.1"}) ordered.module(name, 400);
  ordered.module("layers.2");
  ordered.module("layers.3", 4);
  const auto placed = stages(make_plan(ordered.tree, on_stages(2)));
  EXPECT_EQ(placed.at("layers.1"), 1);
  EXPECT_EQ(placed.at("layers.2"), 1);
  EXPECT_EQ(placed.at("layers"), 0);
}

TEST(Partitioner, NeverMovesAModuleThatCannotLeaveItsParent) {
  TreeBuilder build;
  build.module("tower");
  build.bound("tower.inner", 1000);
  build.module("tower.outer", 1000);
  const auto placed = stages(make_plan(build.tree, on_stages(2)));
  EXPECT_EQ(placed.at("tower.inner"), placed.at("tower"));
  EXPECT_EQ(placed.at("tower.outer"), 1);
}

TEST(Partitioner, SaysWhyThereAreTooFewModules) {
  EXPECT_THAT(refusal_of<ResourceError>(chain(3, 100).tree, on_stages(4)),
              AllOf(HasSubstr("4 stages but only 3 pieces"), HasSubstr("use at most 3 stages"),
                    HasSubstr("SMP_MODULE")));
  EXPECT_THAT(
      refusal_of<ResourceError>(chain(3, 100).tree, on_stages(4, {{"0", 2, "set_partition"}})),
      AllOf(HasSubstr("only 2 pieces of the model to place, beside what is fixed to one of them"),
            HasSubstr("use at most 3 stages")));
  TreeBuilder build;
  build.bound("inner", 100);
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, on_stages(2)),
              AllOf(HasSubstr("only 0 pieces"), HasSubstr("2 modules, 0 of them"),
                    HasSubstr("use at most 1 stages")));
}

/// As a penalty of all weights does that the body adds to its loss.
TEST(Partitioner, SaysThatTheBodyReadsWeights) {
  auto options = on_stages(2);
  const auto build = chain(3, 100);
  options.trace = count_trace(build.tree);
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, on_stages(4)),
              testing::Not(HasSubstr("reads weights")));
  for (int i = 0; i < 3; ++i) options.trace.foreign_uses.push_back({0, i});
  EXPECT_THAT(refusal_of<ResourceError>(build.tree, options),
              AllOf(HasSubstr("only 0 pieces"), HasSubstr("of 3 the step's body"),
                    HasSubstr("method of the module")));
}

TEST(Partitioner, PutsASmallModelBesideOthersOnStageZero) {
  auto options = on_stages(4);
  options.may_leave_idle = true;
  EXPECT_THAT(bytes_per_stage(make_plan(chain(3, 100).tree, options)), ElementsAre(300, 0, 0, 0));
  options.pins = {{"1", 2, "set_partition"}};
  EXPECT_THAT(bytes_per_stage(make_plan(chain(3, 100).tree, options)), ElementsAre(200, 0, 100, 0));
  EXPECT_THAT(bytes_per_stage(make_plan(chain(4, 100).tree, options)),
              ElementsAre(100, 100, 100, 100));
}

TEST(Partitioner, FollowsPinsAndSplitsTheRestAroundThem) {
  const PartitionPlan plan = make_plan(
      chain(6, 100).tree, on_stages(2, {{"0", 1, "set_partition"}, {"1", 1, "set_partition"}}));
  EXPECT_EQ(plan.stage_of("0"), 1);
  EXPECT_EQ(plan.stage_of("1"), 1);
  EXPECT_THAT(bytes_per_stage(plan), ElementsAre(300, 300));
}

TEST(Partitioner, LeavesAStageIdleIfEverythingIsPlacedByHand) {
  const auto build = chain(2, 8);
  const auto plan =
      make_plan(build.tree, on_stages(3, {{"0", 1, "set_partition"}, {"1", 1, "set_partition"}}));
  EXPECT_EQ(plan.stage_of("0"), 1);
  EXPECT_EQ(plan.stage_of("1"), 1);
  EXPECT_EQ(bytes_per_stage(plan)[2], 0);
}

TEST(Partitioner, LetsTheInnermostPinWin) {
  const PartitionPlan plan =
      make_plan(encoder_decoder(2, 64, 64, false),
                on_stages(3, {{"encoder", 2, "pin"}, {"encoder.block.1", 1, "pin"}}));
  EXPECT_EQ(plan.stage_of("encoder"), 2);
  EXPECT_EQ(plan.stage_of("encoder.block.0.attention"), 2);
  EXPECT_EQ(plan.stage_of("encoder.block.1.attention"), 1);
}

TEST(Partitioner, FindsAPinnedModuleByItsOtherName) {
  TreeBuilder build = chain(2, 100);
  build.tree.nodes[1].aliases = {"decoder.embedding"};
  EXPECT_EQ(make_plan(build.tree, on_stages(2, {{"decoder.embedding", 1, "pin"}})).stage_of("0"),
            1);
}

TEST(Partitioner, MovesAFreeModuleToThePinOfItsTiedWeight) {
  const PartitionPlan plan =
      make_plan(encoder_decoder(3, 64, 64, true), on_stages(4, {{"lm_head", 3, "pin"}}));
  EXPECT_EQ(plan.stage_of("shared"), 3);
}

TEST(Partitioner, UsesTheDefaultStageIfItShallNotSplit) {
  PartitionOptions options = on_stages(3, {{"encoder", 1, "pin"}});
  options.auto_partition = false;
  options.default_partition = 2;
  const PartitionPlan plan = make_plan(encoder_decoder(2, 64, 64, false), options);
  EXPECT_EQ(plan.stage_of("encoder.block.0"), 1);
  EXPECT_EQ(plan.stage_of("decoder.block.0"), 2);
  EXPECT_EQ(plan.stage_of("lm_head"), 2);
}

TEST(Partitioner, ListsAllFaultsOfPins) {
  EXPECT_EQ(refusal_of(encoder_decoder(1, 4, 4, false),
                       on_stages(2, {{"encodr", 1, "plan.json"}, {"decoder", 5, "plan.json"}})),
            "placement by hand: 2 problems\n"
            "  1. stage 1 for \"encodr\" (plan.json): the model has no such module; did you mean "
            "\"encoder\"?\n"
            "  2. stage 5 for \"decoder\" (plan.json): there are 2 stages, numbered from 0");
}

TEST(Partitioner, RefusesPinsThatSplitTiedWeights) {
  EXPECT_THAT(
      refusal_of(encoder_decoder(1, 4, 4, true),
                 on_stages(2, {{"shared", 0, "plan.json"}, {"lm_head", 1, "plan.json"}})),
      AllOf(HasSubstr("the tied weight shared.weight belongs to \"shared\" (stage 0, placed "
                      "by plan.json) and to \"lm_head\" (stage 1, placed by plan.json)"),
            HasSubstr("place both there")));
}

TEST(Partitioner, RefusesAPinOnAModuleThatCannotLeaveItsParent) {
  TreeBuilder build = chain(2, 100);
  build.bound("1.inner", 100);
  EXPECT_THAT(
      refusal_of(build.tree, on_stages(2, {{"1", 0, "pin"}, {"1.inner", 1, "pin"}})),
      AllOf(HasSubstr("\"1.inner\" (stage 1, placed by pin) cannot leave stage 0 of its parent"),
            HasSubstr("SMP_MODULE"), HasSubstr("place its parent instead")));
  EXPECT_EQ(refusal_of(build.tree, on_stages(2, {{"1", 1, "pin"}, {"1.inner", 1, "pin"}})),
            "accepted");
}

TEST(Partitioner, AsksWhichOfSeveralModulesAPinMeans) {
  const ModuleTree tree = encoder_decoder(2, 4, 4, false);
  EXPECT_EQ(refusal_of(tree, on_stages(2, {{"final_norm", 1, "plan.json"}})),
            "placement by hand: stage 1 for \"final_norm\" (plan.json): that could be any of 2 "
            "modules, \"encoder.final_norm\" or \"decoder.final_norm\" among them; write the whole "
            "path");
  EXPECT_THAT(refusal_of(tree, on_stages(2, {{"0.dropout", 1, "plan.json"}})),
              HasSubstr("any of 2"));
  TreeBuilder build;
  build.module("tower");
  build.module("tower.roof", 4);
  EXPECT_THAT(refusal_of(build.tree, on_stages(1, {{"roof", 0, "pin"}})),
              HasSubstr("paths start at the model; did you mean \"tower.roof\"?"));
}

TEST(Partitioner, RefusesTwoNamesOfOneModuleOnTwoStages) {
  TreeBuilder build = chain(2, 100);
  build.tree.nodes[1].aliases = {"other"};
  EXPECT_THAT(refusal_of(build.tree, on_stages(2, {{"0", 0, "pin"}, {"other", 1, "pin"}})),
              HasSubstr("this is the same module as \"0\", which pin puts on stage 0"));
  EXPECT_EQ(make_plan(build.tree, on_stages(2, {{"0", 0, "scope"}, {"0", 1, "pin"}})).stage_of("0"),
            1);
}

TEST(Partitioner, RefusesADefaultStageThatDoesNotExist) {
  PartitionOptions options = on_stages(2);
  options.auto_partition = false;
  options.default_partition = 2;
  EXPECT_EQ(refusal_of(chain(3, 4).tree, options),
            "default_partition is 2; there are 2 stages, numbered from 0");
}

TEST(Partitioner, RefusesAnUnknownStrategy) {
  PartitionOptions options = on_stages(2);
  options.strategy = "magic";
  EXPECT_THAT(refusal_of(chain(3, 4).tree, options), HasSubstr("partition_strategy \"magic\""));
}

TEST(Partitioner, FollowsTheStrategyThatIsAskedFor) {
  const SyntheticModel model = family_member("unet", 1);
  for (const std::string strategy : {"tree", "contiguous", "search"}) {
    PartitionOptions options = traced(model, 4, 8);
    options.strategy = strategy;
    const PartitionPlan plan = make_plan(model.tree, options);
    EXPECT_EQ(plan.summary()->chosen.strategy, strategy);
    EXPECT_TRUE(plan.summary()->others.empty());
  }
}

TEST(Partitioner, GivesAFasterStageMore) {
  const SyntheticModel model = flat_gpt({.layers = 12, .vocabulary = 1000});
  PartitionOptions options = traced(model, 2, 8);
  options.machine.speeds = {1, 3};
  const auto bytes = bytes_per_stage(make_plan(model.tree, options));
  EXPECT_GT(bytes[1], 2 * bytes[0]);
}

TEST(CountTrace, CallsEveryModuleOnceInOrder) {
  const ModuleTree tree = encoder_decoder(2, 4, 4, true);
  const simulate::Trace trace = count_trace(tree);
  ASSERT_EQ(trace.calls.size(), tree.nodes.size());
  EXPECT_EQ(trace.source, simulate::CostSource::kCounts);
  for (std::size_t i = 0; i < trace.calls.size(); ++i) {
    EXPECT_EQ(trace.calls[i].module, static_cast<int>(i));
    EXPECT_EQ(trace.calls[i].caller, tree.nodes[i].parent);
  }
}

/// Six equal modules: a stage on an H100 gets more of them than one on a core, and the plan says on
/// what it counted.
TEST(Partitioner, GivesAFastDeviceMore) {
  TreeBuilder build;
  simulate::Trace trace;
  trace.calls.push_back({.module = 0});
  trace.calls[0].sequential = true;
  for (int i = 0; i < 6; ++i) {
    build.module("m" + std::to_string(i), 4);
    trace.calls.push_back({.module = i + 1, .caller = 0, .after = {.seconds = 1}});
  }
  std::vector<simulate::IntervalTimes> slow(trace.num_intervals());
  for (int i = 1; i <= 6; ++i) slow[simulate::Trace::index_of({i, false})] = {5, 10, 5};
  trace.device = "h100";
  trace.profiles.push_back(simulate::profile_of(trace, "cpu", slow));
  auto options = on_stages(2);
  options.trace = trace;
  options.memory_weight = 0;
  options.machine.devices = {"h100", "cpu"};
  simulate::take_device_speeds(options.machine, trace);
  const auto plan = make_plan(build.tree, options);
  const auto bytes = bytes_per_stage(plan);
  EXPECT_EQ(bytes[0], 5 * 4);
  EXPECT_EQ(bytes[1], 1 * 4);
  const auto& summary = *plan.summary();
  EXPECT_EQ(summary.stages[1].device, "cpu");
  EXPECT_GT(summary.step_bound, 0);
  EXPECT_LE(summary.step_bound, summary.chosen.step_seconds);
}

}  // namespace
}  // namespace smp::partitioning
