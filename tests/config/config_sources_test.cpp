// What a plan file says of its run, as settings of another one.
#include "config/config_sources.h"

#include <gmock/gmock.h>

#include "base/files.h"
#include "config/config_inputs.h"
#include "config/config_keys.h"

namespace smp::base {
namespace config_sources_test {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class PlanWithRun : public testing::Test {
 protected:
  /// @param settings  members of a JSON object
  ConfigInput with_plan(const std::string& settings, int world_size = 4) {
    write_file(path_, R"({"format": "smp-plan", "version": 2, "run": {"settings": {)" + settings +
                          R"(}, "ranks": 4}, "modules": {}})");
    return with_flag("plan_file", path_, world_size);
  }
  const std::string path_ = testing::TempDir() + "smp_config_sources_test.json";
};

TEST_F(PlanWithRun, StandsForItsSettings) {
  const auto config = resolve_config(
      with_plan(R"("microbatches": 6, "pipeline": "1f1b+2", "seed": 9, "transport": "mpi",
                   "tensor_parallel_degree": 2, "lend_tensors": false)"));
  EXPECT_EQ(config.values().microbatches, 6);
  EXPECT_EQ(config.values().pipeline, "1f1b+2");
  EXPECT_EQ(config.values().seed, 9u);
  EXPECT_EQ(config.values().transport, "mpi");
  EXPECT_FALSE(config.values().lend_tensors);
  EXPECT_EQ(config.values().pipeline_parallel_degree, 2) << "what the others leave";
  EXPECT_EQ(config.origin("microbatches"),
            "implied by plan_file = " + path_ + " (flag --smp.plan_file)");
  EXPECT_THAT(config.warnings(), IsEmpty());
}

TEST_F(PlanWithRun, AgreesWithASwitchThatIsWrittenAsANumber) {
  with_plan(R"("lend_tensors": false, "master_weights": 1)");
  const auto with_switches = [&](const char* switches) {
    return with_launcher(concat("{", switches, R"(, "plan_file": ")", path_, "\"}"), 4);
  };
  const auto agreeing = with_switches(R"("lend_tensors": 0, "master_weights": true)");
  EXPECT_FALSE(resolve_config(agreeing).values().lend_tensors);
  EXPECT_THAT(refusal_of(with_switches(R"("lend_tensors": 1)")),
              HasSubstr("contradicts lend_tensors = false"));
}

TEST_F(PlanWithRun, OverrulesSourcesThatAreWeakerThanTheOneThatNamesIt) {
  auto input = with_plan(R"("microbatches": 6, "pipeline": "interleaved", "seed": 0)");
  input.code.microbatches = 2;
  input.environment["SMP_PIPELINE"] = "simple";
  input.environment["SMP_SEED"] = "3";
  const auto config = resolve_config(input);
  EXPECT_EQ(config.values().microbatches, 6);
  EXPECT_EQ(config.values().pipeline, "interleaved");
  EXPECT_EQ(config.values().seed, 0u) << "a default that was in force counts too";
  EXPECT_THAT(config.origin("seed"), StartsWith("implied by plan_file"));
}

TEST_F(PlanWithRun, IsContradictedByOtherSourcesByName) {
  auto input = with_plan(R"("microbatches": 6, "pipeline": "simple", "precision": "bf16")");
  input.flags.emplace_back("microbatches", "4");
  input.flags.emplace_back("pipeline", "simple");
  input.flags.emplace_back("fp16", "true");
  const auto text = refusal_of(input);
  EXPECT_THAT(text, AllOf(HasSubstr("microbatches = 4 (flag --smp.microbatches) contradicts "
                                    "microbatches = 6 of the run in plan_file = "),
                          HasSubstr("leave one out (in the file: \"microbatches\" of \"run\")"),
                          HasSubstr("fp16 = true"), HasSubstr("precision = \"bf16\"")));
  EXPECT_THAT(text, testing::Not(HasSubstr("contradicts pipeline")));

  auto weaker = with_plan(R"("microbatches": 6)");
  weaker.flags.clear();
  weaker.code.plan_file = path_;
  weaker.environment["SMP_MICROBATCHES"] = "4";
  EXPECT_THAT(refusal_of(weaker), HasSubstr("environment SMP_MICROBATCHES) contradicts"));
  weaker.environment.clear();
  weaker.code.microbatches = 4;
  EXPECT_THAT(refusal_of(weaker), HasSubstr("(Config in code) contradicts"));
}

TEST_F(PlanWithRun, IsNamedWhereItsValuesAreWrongWithOthers) {
  auto input = with_plan(R"("microbatches": 6)");
  input.flags.emplace_back("loss", "weights");
  input.flags.emplace_back("loss_weights", "[1, 2]");
  EXPECT_THAT(refusal_of(input), HasSubstr("microbatches = 6 (implied by plan_file"));
}

TEST_F(PlanWithRun, BringsItsOwnLists) {
  const auto config = resolve_config(with_plan(R"("pipeline": "file:own.txt")"));
  EXPECT_EQ(config.values().pipeline, "file:" + path_);
}

/// Ranks beyond them train replicas, as they did in that run.
TEST_F(PlanWithRun, HasItsNumberOfStages) {
  const auto stages_of = [&](const ConfigInput& input) {
    return resolve_config(input).values().pipeline_parallel_degree;
  };
  EXPECT_EQ(stages_of(with_plan(R"("pipeline_parallel_degree": 3)", 6)), 3);
  auto input = with_plan(R"("seed": 9)", 6);
  write_file(path_, R"({"format": "smp-plan", "version": 2, "pp_size": 2,
                        "run": {"settings": {"seed": 9}, "ranks": 6}, "modules": {}})");
  EXPECT_EQ(stages_of(input), 2) << "files of older builds";
  input.flags.emplace_back("partitions", "3");
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("= 3 (flag --smp.partitions) contradicts"),
                                       HasSubstr("= 2 of the run")));
  const auto recorded = settings_to_record(resolve_config(with_flag("partitions", "2", 6)));
  EXPECT_EQ(recorded.at("pipeline_parallel_degree"), 2);
}

TEST_F(PlanWithRun, LeavesRanksOfOneProcessThere) {
  auto input = with_plan(R"("transport": "mpi", "microbatches": 3)");
  input.code.transport = "local";
  EXPECT_EQ(resolve_config(input).values().transport, "local");
  EXPECT_EQ(resolve_config(input).values().microbatches, 3);
}

TEST_F(PlanWithRun, IsRefusedForWhatNoRunHas) {
  EXPECT_THAT(refusal_of(with_plan(R"("microbatch": 3)")),
              HasSubstr("\"run\" has no setting \"microbatch\"; did you mean \"microbatches\"?"));
  EXPECT_THAT(refusal_of(with_plan(R"("abort_seconds": 3)")), HasSubstr("abort_seconds"));
  EXPECT_THAT(refusal_of(with_plan(R"("microbatches": 0)")),
              HasSubstr("\"microbatches\" of \"run\" is 0, expected an integer"));
}

TEST_F(PlanWithRun, NeedNotBeOne) {
  for (const char* text :
       {"{}", "[1]", R"({"run": 0})", R"({"format": "smp-plan", "version": 1, "modules": {}})",
        R"({"format": "smp-plan", "run": {"settings": 3}})"}) {
    write_file(path_, text);
    const auto config = resolve_config(with_flag("plan_file", path_));
    EXPECT_EQ(config.values().microbatches, 1) << text;
    EXPECT_EQ(config.plan_text(), text) << "read once";
  }
  EXPECT_EQ(resolve_config(with_world(4)).plan_text(), "");
}

TEST_F(PlanWithRun, MustBeThereAndBeJson) {
  EXPECT_THAT(refusal_of(with_flag("plan_file", "no/plan.json")),
              AllOf(HasSubstr("plan_file = no/plan.json (flag --smp.plan_file): cannot read "
                              "no/plan.json: No such file or directory"),
                    HasSubstr("name the plan.json of a run's folder")));
  EXPECT_THAT(refusal_of(with_flag("plan_file", testing::TempDir())),
              HasSubstr("Is a directory; name the plan.json"));
  for (const char* text : {"", "no JSON", "{"}) {
    write_file(path_, text);
    EXPECT_THAT(refusal_of(with_flag("plan_file", path_)), HasSubstr(path_ + ": ")) << text;
  }
}

TEST(SettingsToRecord, AreKeysAndResolveToThemselves) {
  for (const auto& key : recorded_keys()) {
    const auto* known = find_config_key(key);
    ASSERT_NE(known, nullptr) << key;
    EXPECT_EQ(known->name, key);
    EXPECT_TRUE(known->same_on_all_ranks) << key;
  }
}

TEST(SettingsToRecord, LeaveOutWhatHasNoEffect) {
  const auto by_default = settings_to_record(resolve_config(with_world(4)));
  EXPECT_TRUE(by_default.contains("active_microbatches"));
  EXPECT_FALSE(by_default.contains("fast_mode"));
  EXPECT_FALSE(by_default.contains("loss_weights"));
  auto input = with_flag("pipeline", "simple");
  input.flags.emplace_back("static_mode", "true");
  input.code.transport = "local";
  const auto other = settings_to_record(resolve_config(input));
  EXPECT_FALSE(other.contains("active_microbatches"));
  EXPECT_TRUE(other.contains("fast_mode"));
  EXPECT_FALSE(other.contains("transport"));
}

}  // namespace config_sources_test
}  // namespace smp::base
