// Settings that are each right by themselves and do not go together.
#include "config/setting_checks.h"

#include <gmock/gmock.h>

#include "base/files.h"
#include "config/config_inputs.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(SettingChecks, RefuseTwoWaysOfRoundingParameters) {
  EXPECT_THAT(refusal_of(with_launcher(R"({"master_weights": true, "stochastic_rounding": true})")),
              HasSubstr("keep one of the two"));
}

TEST(SettingChecks, RefuseFastModeByItself) {
  EXPECT_THAT(
      refusal_of(with_flag("fast_mode", "true", 2)),
      AllOf(HasSubstr("fast_mode = true (flag --smp.fast_mode)"), HasSubstr("needs static_mode")));
  ConfigInput input = with_flag("fast_mode", "true", 2);
  input.flags.emplace_back("static_mode", "true");
  EXPECT_TRUE(resolve_config(input).values().fast_mode);
  input.flags.emplace_back("promised_outputs", "false");
  EXPECT_THAT(refusal_of(input), HasSubstr("contradicts promised_outputs = false"));
}

TEST(SettingChecks, TakeFastModeAsAPartOfStaticMode) {
  ConfigInput input = with_flag("static_mode", "true", 2);
  EXPECT_TRUE(resolve_config(input).values().fast_mode);
  // Nobody has asked for fast_mode, so there is nothing to contradict.
  input.flags.emplace_back("promised_outputs", "false");
  EXPECT_FALSE(resolve_config(input).values().promised_outputs);
  ConfigInput code;
  code.code.static_mode = true;
  code.code.promised_outputs = false;
  EXPECT_TRUE(resolve_config(code).values().static_mode);
}

TEST(SettingChecks, WarnOfFastModeThatIsOffByItself) {
  const auto resolved = resolve_config(with_flag("fast_mode", "false", 2));
  EXPECT_FALSE(resolved.values().fast_mode);
  EXPECT_THAT(resolved.warnings(),
              Contains(AllOf(HasSubstr("fast_mode = false"), HasSubstr("no effect"))));
  ConfigInput input = with_flag("fast_mode", "false", 2);
  input.flags.emplace_back("static_mode", "true");
  EXPECT_THAT(resolve_config(input).warnings(), Not(Contains(HasSubstr("fast_mode"))));
}

TEST(SettingChecks, RefuseImpossibleDegrees) {
  EXPECT_THAT(refusal_of(with_flag("partitions", "8", 4)),
              AllOf(HasSubstr("partitions = 8 (flag --smp.partitions)"),
                    HasSubstr("needs 8 ranks, but 4 were started"), HasSubstr("mpirun -n 8")));
  EXPECT_THAT(refusal_of(with_flag("partitions", "4", 6)), HasSubstr("cannot be divided"));
}

TEST(SettingChecks, MakeReplicasOfRanksBeyondTheStages) {
  EXPECT_EQ(resolve_config(with_flag("partitions", "2", 4)).arrangement().pp_size, 2);
  ConfigInput input = with_flag("partitions", "2", 4);
  input.flags.emplace_back("ddp", "false");
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("of 4 ranks makes 2 replicas"),
                                       HasSubstr("ddp = false (flag --smp.ddp)")));
  input.world_size = 2;
  EXPECT_NO_THROW(resolve_config(input));
}

TEST(SettingChecks, MakeStagesOfWhatRemainsAfterTensorParallelism) {
  const auto alone = resolve_config(with_flag("tensor_parallel_degree", "2", 8)).arrangement();
  EXPECT_EQ(alone.tp_size, 2);
  EXPECT_EQ(alone.pp_size, 4);
  auto input = with_flag("tensor_parallel_degree", "2", 8);
  input.flags.emplace_back("pipeline_parallel_degree", "2");
  EXPECT_EQ(resolve_config(input).arrangement().pp_size, 2);
  input.flags.back() = {"pipeline_parallel_degree", "3"};
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("with tensor_parallel_degree = 2"),
                                       HasSubstr("8 ranks cannot be divided into pipelines of 6")));
  input.flags.back() = {"pipeline_parallel_degree", "8"};
  EXPECT_THAT(refusal_of(input), HasSubstr("needs 16 ranks, but 8 were started; start 16"));
}

TEST(SettingChecks, RefuseTensorDegreesThatDoNotFit) {
  EXPECT_THAT(refusal_of(with_flag("tensor_parallel_degree", "3", 4)),
              AllOf(HasSubstr("tensor_parallel_degree = 3"),
                    HasSubstr("4 ranks were started, which cannot be divided by 3"),
                    HasSubstr("mpirun -n 3")));
  auto input = with_flag("tensor_parallel_degree", "2", 4);
  input.flags.emplace_back("ddp", "false");
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("makes 2 ranks that read different samples"),
                                       HasSubstr("ddp = false")));
}

TEST(SettingChecks, NeedADefaultStageIfNothingElsePlacesModules) {
  EXPECT_THAT(refusal_of(with_flag("auto_partition", "false")),
              HasSubstr("default_partition is not set"));
  ConfigInput input = with_flag("auto_partition", "false");
  const auto plan = testing::TempDir() + "smp_setting_checks_test.json";
  write_file(plan, "{}");
  input.flags.emplace_back("plan_file", plan);
  EXPECT_NO_THROW(resolve_config(input));
  input.flags.back() = {"default_partition", "3"};
  EXPECT_NO_THROW(resolve_config(input));
  input.flags.back() = {"default_partition", "4"};
  EXPECT_THAT(refusal_of(input), HasSubstr("there are 4 stages"));
}

TEST(SettingChecks, NeedOneSpeedPerStageAndOneMemoryPerStageOrForAll) {
  EXPECT_NO_THROW(resolve_config(with_flag("stage_speeds", "1,2,1,1")));
  EXPECT_THAT(refusal_of(with_flag("stage_speeds", "1,2")),
              AllOf(HasSubstr("stage_speeds = 1,2"), HasSubstr("2 numbers for 4 stages")));
  EXPECT_NO_THROW(resolve_config(with_flag("stage_memory", "1,2,1,1")));
  EXPECT_NO_THROW(resolve_config(with_flag("stage_memory", "16")));
  EXPECT_THAT(refusal_of(with_flag("stage_memory", "1,2,3,4,5")),
              AllOf(HasSubstr("5 numbers for 4 stages"), HasSubstr("or one for all")));
}

TEST(SettingChecks, NeedOneDevicePerStageOrOneForAll) {
  EXPECT_NO_THROW(resolve_config(with_flag("devices", "h100")));
  EXPECT_NO_THROW(resolve_config(with_flag("devices", "h100, h100,a100, cpu")));
  EXPECT_THAT(refusal_of(with_flag("devices", "h100,cpu")), HasSubstr("2 devices for 4 stages"));
  EXPECT_THAT(refusal_of(with_flag("devices", "h10")),
              AllOf(HasSubstr("devices = h10 (flag --smp.devices): there is no device \"h10\""),
                    HasSubstr("did you mean \"h100\"?"), HasSubstr("known are cpu, a100, h100")));
  EXPECT_THAT(refusal_of(with_flag("devices", "h100,a10,a10,cpu")), HasSubstr("\"a100\"?"));
}

TEST(SettingChecks, PriceModulesByDevicesOrByAClock) {
  ConfigInput input = with_flag("devices", "h100");
  input.flags.emplace_back("trace_repeats", "3");
  EXPECT_THAT(refusal_of(input), HasSubstr("a clock measures this machine only"));
  input.flags.back() = {"skip_tracing", "true"};
  EXPECT_THAT(refusal_of(input), HasSubstr("what is not run cannot be priced"));
}

TEST(SettingChecks, NeedOneLossWeightPerMicrobatch) {
  ConfigInput input = with_flag("loss", "weights");
  input.flags.emplace_back("microbatches", "2");
  EXPECT_THAT(refusal_of(input), HasSubstr("loss_weights has 0 numbers"));
  input.flags.emplace_back("loss_weights", "0.25,0.75");
  EXPECT_THAT(resolve_config(input).values().loss_weights, ElementsAre(0.25, 0.75));
  EXPECT_THAT(refusal_of(with_flag("loss_weights", "1")), HasSubstr("has no effect"));
}

TEST(SettingChecks, WarnAboutACapThatCannotWork) {
  EXPECT_THAT(resolve_config(with_flag("active_microbatches", "8")).warnings(),
              ElementsAre(HasSubstr("more than microbatches = 1 (default)")));
  ConfigInput input = with_flag("active_microbatches", "1");
  EXPECT_THAT(resolve_config(input).warnings(), IsEmpty());
  input.flags.emplace_back("pipeline", "1f1b");
  EXPECT_THAT(resolve_config(input).warnings(), ElementsAre(HasSubstr("has no effect")));
}

}  // namespace
}  // namespace smp::base
