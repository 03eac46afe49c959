// The plan's file, and how it is read by people.
#include "smp/plan.h"

#include <gmock/gmock.h>

#include "base/check.h"
#include "base/clock.h"
#include "partition/plan/plan_check.h"
#include "partition/plan/plan_example.h"
#include "partition/search/even_plan.h"
#include "support/refusal.h"

namespace smp::partitioning {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two modules, the second one tied to the first.
ModuleTree small_tree() {
  TreeBuilder build;
  const int embed = build.module("embed");
  const int table = build.weight(embed, "weight", 64);
  build.module("middle", 32);
  build.tie(build.module("head"), table);
  return build.tree;
}

TEST(Plan, HasOneLinePerModule) {
  EXPECT_EQ(even_plan(small_tree(), 2).to_json(), R"({
  "format": "smp-plan",
  "version": 1,
  "pp_size": 2,
  "model": "b6be283501f4566b",
  "modules": {
    "": 0,
    "embed": {"pp_rank":0,"parameters":"weight float32[16]","elements":16,"bytes":64},
    "middle": {"pp_rank":1,"parameters":"weight float32[8]","elements":8,"bytes":32},
    "head": {"pp_rank":0,"parameters":"weight = embed.weight","elements":0,"bytes":0}
  }
}
)");
}

TEST(Plan, SurvivesItsFile) {
  const std::string path = testing::TempDir() + "smp_plan_test.json";
  const PartitionPlan plan = even_plan(encoder_decoder(3, 64, 64, true), 3);
  plan.write(path);
  const PartitionPlan back = PartitionPlan::read(path);
  EXPECT_EQ(back.to_json(), plan.to_json());
  EXPECT_EQ(back.model_hash(), plan.model_hash());
  EXPECT_EQ(refusal([&] { check_plan(back, encoder_decoder(3, 64, 64, true), 3, path); }),
            "accepted");
}

TEST(Plan, StepOfAReadPlanReadsAsItDidBefore) {
  auto plan = t5_example().plan();
  auto summary = *plan.summary();
  summary.chosen.step_seconds = 11.004996;  // 11.005 in six digits, and then 11.01 in the table
  plan = PartitionPlan(plan.pp_size(), plan.rows(), summary);
  EXPECT_THAT(plan.table(), HasSubstr("11.00 s"));
  const auto read = PartitionPlan::from_json(plan.to_json(), "p.json");
  EXPECT_THAT(read.table(), HasSubstr("11.00 s"));
}

TEST(Plan, NamesTheNearestModule) {
  const PartitionPlan plan = even_plan(small_tree(), 2);
  EXPECT_EQ(plan.stage_of("middle"), 1);
  EXPECT_EQ(refusal([&] { (void)plan.stage_of("midle"); }),
            "the plan has no module \"midle\"; did you mean \"middle\"?");
}

TEST(Plan, RefusesAFileThatIsNoPlan) {
  const auto read = [](const std::string& text) {
    return refusal([&] { PartitionPlan::from_json(text, "p.json"); });
  };
  EXPECT_THAT(read("{"), HasSubstr("p.json: line 1, column 2"));
  EXPECT_THAT(read("[]"), HasSubstr("p.json: \"format\" is missing"));
  EXPECT_THAT(read(R"({"format": "other"})"), HasSubstr("this is not a plan"));
  EXPECT_THAT(read(R"({"format": "smp-plan", "version": 3})"), HasSubstr("version 3"));
  EXPECT_THAT(read(R"({"format": "smp-plan", "version": 1, "pp_size": 1, "modules": []})"),
              HasSubstr("must map module paths"));
  EXPECT_THAT(
      read(R"({"format": "smp-plan", "version": 1, "pp_size": 2, "modules": {"": 0, "a": "x"}})"),
      HasSubstr("p.json: module \"a\": \"pp_rank\" is missing"));
}

TEST(Plan, RefusesAFileWithStagesThatDoNotExist) {
  const auto read = [](const std::string& members) {
    return refusal([&] {
      PartitionPlan::from_json(R"({"format": "smp-plan", "version": 1, )" + members + "}",
                               "p.json");
    });
  };
  EXPECT_THAT(read(R"("pp_size": 0, "modules": {})"), HasSubstr("\"pp_size\" is 0"));
  EXPECT_THAT(read(R"("pp_size": 2, "modules": {"": 0, "a": 2})"),
              HasSubstr("module \"a\" is on stage 2, but there are 2 stages"));
  EXPECT_THAT(read(R"("pp_size": 2, "modules": {"": 0, "a": 4294967297})"),
              HasSubstr("p.json: module \"a\": the stage is 4294967297, expected an integer"));
  EXPECT_THAT(read(R"("pp_size": 1.9, "modules": {"": 0})"),
              HasSubstr("p.json: \"pp_size\" is 1.9, expected an integer"));
  EXPECT_THAT(read(R"("pp_size": 1000000, "modules": {"": 0})"),
              HasSubstr("p.json: \"pp_size\" is 1000000, expected at least 1 and at most 65536"));
}

TEST(Plan, RefusesModulesThatAreNoTree) {
  const auto read = [](const std::string& modules) {
    return refusal([&] {
      PartitionPlan::from_json(
          R"({"format": "smp-plan", "version": 1, "pp_size": 1, "modules": {)" + modules + "}}",
          "p.json");
    });
  };
  EXPECT_EQ(read(R"("": 0, "a": 0, "a.b": 0)"), "accepted");
  EXPECT_THAT(read(R"("a": 0)"), HasSubstr("p.json: \"a\" is in the place of the model itself"));
  EXPECT_THAT(read(R"("": 0, "a.b": 0, "a": 0)"),
              HasSubstr("p.json: module \"a.b\" comes before \"a\""));
  EXPECT_THAT(read(R"("": 0, "": 0)"), HasSubstr("given twice"));
  EXPECT_THAT(read("\"\": 0, \"" + std::string(5000, '.') + "\": 0"), HasSubstr("5000 bytes"));
}

TEST(Plan, IsReadAndComparedInTimeThatGrowsWithItsLength) {
  // 60,000 modules took 22 s, most of them in looking each up among all others.
  TreeBuilder build;
  for (int i = 0; i < 60'000; ++i) build.module(base::concat("m", i), 4);
  const base::SteadyClock clock;
  const auto start = clock.now();
  const auto text = even_plan(build.tree, 4).to_json();
  check_plan(PartitionPlan::from_json(text, "p.json"), build.tree, 4, "p.json");
  EXPECT_LT(clock.now() - start, 5'000'000'000);
}

TEST(Plan, RefusesAnotherNumberOfStages) {
  EXPECT_THAT(refusal([] { check_plan(even_plan(small_tree(), 2), small_tree(), 4, "p.json"); }),
              AllOf(HasSubstr("p.json: made for 2 stages, but this run has 4"),
                    HasSubstr("make that many stages")));
}

TEST(Plan, NamesTheFirstDifferenceFromTheModel) {
  const PartitionPlan plan = even_plan(small_tree(), 2);
  const auto against = [&](const ModuleTree& tree) {
    return refusal([&] { check_plan(plan, tree, 2, "p.json"); });
  };
  ModuleTree wider = small_tree();
  wider.parameters[1].shape = "float32[9]";
  EXPECT_THAT(against(wider),
              HasSubstr("parameters of \"middle\" are \"weight float32[8]\" in the plan "
                        "and \"weight float32[9]\" in the model"));
  ModuleTree renamed = small_tree();
  renamed.nodes[2].path = "middles";
  EXPECT_THAT(against(renamed),
              HasSubstr("the model has no module \"middle\"; did you mean \"middles\"?"));
  ModuleTree longer = small_tree();
  longer.add("tail", 0);
  EXPECT_THAT(against(longer), HasSubstr("the plan lacks module \"tail\""));
  ModuleTree untied = small_tree();
  untied.nodes[3].parameters.clear();
  EXPECT_THAT(against(untied), HasSubstr("parameters of \"head\""));
}

TEST(Plan, IsCheckedEvenIfItWasEditedByHand) {
  std::vector<PartitionPlan::Row> rows = even_plan(small_tree(), 2).rows();
  rows[3].pp_rank = 1;
  EXPECT_THAT(refusal([&] { check_plan(PartitionPlan(2, rows), small_tree(), 2, "p.json"); }),
              HasSubstr("p.json: the tied weight embed.weight"));
  rows[3].pp_rank = 2;
  EXPECT_THAT(refusal([&] { check_plan(PartitionPlan(2, rows), small_tree(), 2, "p.json"); }),
              AllOf(HasSubstr("2 problems"), HasSubstr("\"head\" (stage 2): there are 2 stages")));
}

TEST(Plan, HashDependsOnTheModelOnly) {
  EXPECT_EQ(even_plan(small_tree(), 1).model_hash(), even_plan(small_tree(), 2).model_hash());
  ModuleTree wider = small_tree();
  wider.parameters[1].shape = "float32[9]";
  EXPECT_NE(even_plan(wider, 2).model_hash(), even_plan(small_tree(), 2).model_hash());
}

TEST(PlanFile, IsAPlanOrAShortMapOfPins) {
  const std::string name = "plan.json";
  EXPECT_TRUE(plan_file_of(even_plan(small_tree(), 2).to_json(), name).plan);
  const PlanFile file = plan_file_of("{\"middle\": 1, // the rest is free\n \"head\": 0}", name);
  EXPECT_FALSE(file.plan);
  ASSERT_EQ(file.pins.size(), 2u);
  EXPECT_EQ(file.pins[0].path, "middle");
  EXPECT_EQ(file.pins[0].pp_rank, 1);
  EXPECT_EQ(file.pins[0].origin, name);
  EXPECT_EQ(plan_file_of(R"({"format": 1})", name).pins.at(0).path, "format") << "a module";
  EXPECT_THAT(refusal([&] { plan_file_of(R"({"middle": "one"})", name); }),
              HasSubstr("must be an integer, found \"one\""));
}

TEST(Plan, KeepsWhatWasPredictedOfIt) {
  const PartitionPlan plan = t5_example().plan();
  const std::string text = plan.to_json();
  const PartitionPlan back = PartitionPlan::from_json(text, "p.json");
  EXPECT_EQ(back.to_json(), text);
  ASSERT_TRUE(back.summary());
  EXPECT_EQ(back.summary()->chosen.strategy, "search");
  EXPECT_EQ(back.summary()->others.size(), 2u);
  EXPECT_EQ(back.summary()->stages[1].why, plan.summary()->stages[1].why);
  EXPECT_NEAR(back.rows()[1].cost, plan.rows()[1].cost, 1e-6);
  EXPECT_EQ(back.model_hash(), plan.model_hash());
}

TEST(Plan, HasALineForEachStageAndModule) {
  const std::string text = t5_example().plan().to_json();
  EXPECT_THAT(text, HasSubstr("\n      {\"cost\":0.375,\"weights\":"));
  EXPECT_THAT(text, HasSubstr("\n    \"lm_head\": {\"pp_rank\":0,\"parameters\":\"weight = "
                              "shared.weight\",\"elements\":0,\"bytes\":0,"
                              "\"why\":\"tied with shared\"}\n"));
}

TEST(Plan, LosesItsPredictionsWhenAModuleIsMovedByHand) {
  std::string text = t5_example().plan().to_json();
  const std::string line = "\"encoder.final_norm\": {\"pp_rank\":1";
  const auto at = text.find(line);
  ASSERT_NE(at, std::string::npos);
  text[at + line.size() - 1] = '0';
  const PartitionPlan edited = PartitionPlan::from_json(text, "p.json");
  EXPECT_EQ(edited.stage_of("encoder.final_norm"), 0);
  EXPECT_FALSE(edited.summary());
}

TEST(Plan, RefusesProductsOfWhatIsNotComputedAgain) {
  std::string text = t5_example().plan().to_json();
  const std::string line = "\"encoder.final_norm\": {\"pp_rank\":1";
  text.insert(text.find(line) + line.size(), ",\"keeps_products\":true");
  EXPECT_THAT(refusal([&] { PartitionPlan::from_json(text, "p.json"); }),
              HasSubstr("module \"encoder.final_norm\": \"keeps_products\" is true, but"));
}

TEST(Plan, RefusesABrokenSummary) {
  const std::string text = t5_example().plan().to_json();
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(part), part.size(), other);
    return refusal([&] { PartitionPlan::from_json(changed, "p.json"); });
  };
  EXPECT_EQ(with("\"placement\"", "\"place\""), "p.json: \"placement\" is missing");
  EXPECT_EQ(with("\"microbatches\"", "\"batches\""),
            "p.json: \"summary\": \"microbatches\" is missing");
  EXPECT_THAT(with("\"pp_size\": 3", "\"pp_size\": 4"),
              HasSubstr("the summary has 3 stages, but \"pp_size\" is 4"));
}

}  // namespace
}  // namespace smp::partitioning
