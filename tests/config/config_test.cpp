// Which setting wins, and what is refused, with messages a user can act on.
#include "config/config.h"

#include <gmock/gmock.h>

#include "base/files.h"
#include "config/config_inputs.h"
#include "config/config_keys.h"
#include "config/needless_keys.h"

namespace smp::base {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;

// A JSON file of the given content.
class ConfigFile : public testing::Test {
 protected:
  ConfigInput with_file(const std::string& content, int world_size = 4) {
    write_file(path_, content);
    return with_flag("config", path_, world_size);
  }
  std::string path_ = testing::TempDir() + "smp_config_test.json";
};

TEST(Config, UsesAllRanksAsStagesByDefault) {
  const ResolvedConfig config = resolve_config(with_world(4));
  EXPECT_EQ(config.values().pipeline_parallel_degree, 4);
  EXPECT_EQ(config.values().active_microbatches, 10);
  EXPECT_EQ(config.origin("pipeline_parallel_degree"), "default");
  EXPECT_THAT(config.warnings(), IsEmpty());
}

TEST(Config, LeavesDegreesOpenWhileTheWorldIsUnknown) {
  const ResolvedConfig config = resolve_config({});
  EXPECT_FALSE(config.values().pipeline_parallel_degree);
  EXPECT_FALSE(config.values().active_microbatches);
}

TEST_F(ConfigFile, GivesWayToTheEnvironmentWhichGivesWayToFlags) {
  ConfigInput input =
      with_file(R"({"microbatches": 2, "seed": 2, "loss": "sum", "stall_seconds": 2})");
  input.code.microbatches = 1000;
  input.code.seed = 1000;
  input.code.loss = "weights";
  input.code.abort_seconds = 1;
  input.environment["SM_HP_MP_PARAMETERS"] = R"({"microbatches": 3, "stall_seconds": 3})";
  input.environment["SMP_MICROBATCHES"] = "4";
  input.environment["SMP_SEED"] = "4";
  input.flags.emplace_back("microbatches", "5");
  const ResolvedConfig config = resolve_config(input);
  EXPECT_EQ(config.values().microbatches, 5);
  EXPECT_EQ(config.origin("microbatches"), "flag --smp.microbatches");
  EXPECT_EQ(config.values().seed, 4u);
  EXPECT_EQ(config.origin("seed"), "environment SMP_SEED");
  EXPECT_EQ(config.values().stall_seconds, 3);
  EXPECT_EQ(config.origin("stall_seconds"), "environment SM_HP_MP_PARAMETERS");
  EXPECT_EQ(config.values().loss, "sum");
  EXPECT_EQ(config.origin("loss"), path_ + ":1:32");
  EXPECT_EQ(config.values().abort_seconds, 1);
  EXPECT_EQ(config.origin("abort_seconds"), "Config in code");
  EXPECT_EQ(config.origin("pipeline"), "default");
}

TEST_F(ConfigFile, AcceptsTheParametersOfTheOriginalWithComments) {
  const ResolvedConfig config = resolve_config(with_file(R"({
    // as given to the launcher
    "partitions": 2, "microbatches": 4, "pipeline": "simple", "optimize": "memory",
    "ddp": true, "memory_weight": 0.8, "active_microbatches": 3, "fp16": false
  })",
                                                         2));
  EXPECT_EQ(config.values().pipeline_parallel_degree, 2);
  EXPECT_EQ(config.values().pipeline, "simple");
  EXPECT_EQ(config.values().active_microbatches, 3);
}

/// A run writes its settings with their origins, and they come back as they were given.
TEST_F(ConfigFile, MayBeThatOfARun) {
  auto input = with_flag("pipeline", "zero_bubble");
  input.flags.emplace_back("microbatches", "6");
  input.flags.emplace_back("stage_speeds", "1,2,1,2");
  input.environment["SMP_SEED"] = "12";
  input.code.memory_weight = 0.3;
  const auto run = resolve_config(input);
  const auto again = resolve_config(with_file(run.to_json()));
  for (const ConfigKey& key : config_keys()) {
    EXPECT_EQ(key.load(again.values()), key.load(run.values())) << key.name;
  }
  EXPECT_THAT(again.origin("seed"), HasSubstr(path_));
  EXPECT_EQ(again.origin("loss"), "default");
  auto other = with_file(run.to_json());
  other.flags.emplace_back("microbatches", "3");
  EXPECT_EQ(resolve_config(other).values().microbatches, 3);
}

/// What followed from the run's precision does not bind another one.
TEST_F(ConfigFile, OfARunGoesOnWithAnotherPrecision) {
  for (const std::string first : {"bf16", "bf16_sr", "fp16"}) {
    const auto run = resolve_config(with_flag("precision", first)).to_json();
    for (const std::string next : {"amp", "bf16", "bf16_sr", "fp16"}) {
      SCOPED_TRACE(first + " to " + next);
      auto input = with_file(run);
      input.flags.emplace_back("precision", next);
      const auto again = resolve_config(input).values();
      const auto fresh = resolve_config(with_flag("precision", next)).values();
      EXPECT_EQ(again.master_weights, fresh.master_weights);
      EXPECT_EQ(again.stochastic_rounding, fresh.stochastic_rounding);
    }
  }
}

TEST_F(ConfigFile, NamesLineAndColumnOfAnUnknownKey) {
  EXPECT_EQ(
      refusal_of(with_file("{\n  \"microbatches\": 2,\n  \"pipline\": \"simple\"\n}")),
      "configuration: unknown key \"pipline\" (" + path_ + ":3:3); did you mean \"pipeline\"?");
}

TEST_F(ConfigFile, NamesLineAndColumnOfBrokenJson) {
  EXPECT_THAT(refusal_of(with_file("{\n  \"microbatches\": 2,,\n}")),
              AllOf(HasSubstr(path_), HasSubstr("line 2, column 21")));
}

TEST_F(ConfigFile, RefusesAKeyGivenTwice) {
  EXPECT_THAT(refusal_of(with_file(R"({"seed": 1, "seed": 2})")),
              HasSubstr("\"seed\" is given twice"));
}

TEST_F(ConfigFile, RefusesAnythingButAnObject) {
  EXPECT_THAT(refusal_of(with_file("[1, 2]")), HasSubstr("expected one JSON object"));
}

TEST(Config, NamesAMissingFile) {
  EXPECT_THAT(refusal_of(with_flag("config", "no/such.json")),
              HasSubstr("cannot read no/such.json: No such file or directory (flag --smp.config)"));
  ConfigInput forgotten;
  forgotten.environment["SMP_CONFIG"] = "old.json";
  EXPECT_THAT(refusal_of(forgotten), HasSubstr("old.json: No such file or directory "
                                               "(environment SMP_CONFIG)"));
  EXPECT_THAT(refusal_of(with_flag("config", "")), HasSubstr("needs the path"));
}

TEST(Config, ReadsTheFileThatTheEnvironmentNames) {
  const std::string path = testing::TempDir() + "smp_config_environment.json";
  write_file(path, R"({"seed": 9})");
  ConfigInput input;
  input.environment["SMP_CONFIG"] = path;
  EXPECT_EQ(resolve_config(input).values().seed, 9u);
}

TEST(Config, RefusesWrongTypesAndRanges) {
  EXPECT_EQ(refusal_of(with_flag("microbatches", "many")),
            "configuration: microbatches = many (flag --smp.microbatches): expected an "
            "integer from 1 to 1048576");
  EXPECT_THAT(refusal_of(with_flag("microbatches", "0")), HasSubstr("from 1 to"));
  EXPECT_THAT(refusal_of(with_flag("microbatches", "4.5")), HasSubstr("an integer"));
  EXPECT_THAT(refusal_of(with_flag("microbatches", "99999999999")), HasSubstr("an integer"));
  EXPECT_THAT(refusal_of(with_flag("microbatches", "")), HasSubstr("an integer"));
  EXPECT_THAT(refusal_of(with_flag("seed", "-1")), HasSubstr("from 0 to"));
  EXPECT_THAT(refusal_of(with_flag("stall_seconds", "nan")), HasSubstr("a number from 0 to"));
  EXPECT_THAT(refusal_of(with_flag("fiber_stack_bytes", "1000")),
              HasSubstr("from 262144 to 70368744177664"));
  EXPECT_THAT(refusal_of(with_flag("pipeline", "eager")),
              HasSubstr("\"interleaved\", \"simple\", \"1f1b\", \"1f1b+N\", \"zero_bubble\", "
                        "\"zero_bubble+N\" or \"file:PATH\""));
  for (const char* wrong : {"1f1b+", "1f1b+x", "simple+2", "zero_bubble+-1", "1f1b+9999999"}) {
    EXPECT_THAT(refusal_of(with_flag("pipeline", wrong)), HasSubstr("zero_bubble+N")) << wrong;
  }
  EXPECT_THAT(refusal_of(with_flag("pipeline", "file:")), HasSubstr("file:PATH"));
  EXPECT_THAT(refusal_of(with_flag("placement_strategy", "DPP")), HasSubstr("permutation"));
  EXPECT_THAT(refusal_of(with_flag("auto_partition", "maybe")), HasSubstr("true or false"));
  EXPECT_THAT(refusal_of(with_launcher(R"({"microbatches": "4"})")), HasSubstr("an integer"));
  EXPECT_THAT(refusal_of(with_launcher(R"({"auto_partition": "yes"})")),
              HasSubstr("true or false"));
}

TEST(Config, RefusesWhatNoMachineCanDo) {
  EXPECT_THAT(refusal_of(with_flag("intra_op_threads", "100000")), HasSubstr("from 0 to 1024"));
  EXPECT_THAT(refusal_of(with_flag("pipeline_parallel_degree", "1000000")),
              HasSubstr("from 1 to 65536"));
  EXPECT_THAT(refusal_of(with_flag("fiber_stack_bytes", "1000000000000000")),
              HasSubstr("to 70368744177664"));
  EXPECT_THAT(refusal_of(with_flag("abort_seconds", "1e300")), HasSubstr("from 0 to 1e+09"));
  EXPECT_THAT(refusal_of(with_flag("stage_speeds", "1e-300")), HasSubstr("from 1e-06 to 1e+06"));
  EXPECT_THAT(refusal_of(with_flag("stage_memory", "inf")), HasSubstr("from 1e-06 to 1e+09"));
  EXPECT_THAT(refusal_of(with_flag("network_gbit", "1e-12")), HasSubstr("from 1e-06 to 1e+06"));
  EXPECT_THAT(refusal_of(with_flag("bucket_cap_mb", "1e15")), HasSubstr("from 1e-06 to 1e+09"));
}

TEST(Config, RefusesDamagedJsonWithItsPlace) {
  EXPECT_THAT(refusal_of(with_launcher(std::string(100'000, '['))),
              HasSubstr("environment SM_HP_MP_PARAMETERS: brackets are nested"));
  EXPECT_THAT(refusal_of(with_launcher(R"({"stall_seconds": 1e999})")),
              HasSubstr("environment SM_HP_MP_PARAMETERS: the number 1e999 is too large"));
  EXPECT_THAT(
      refusal_of(with_launcher(R"({"microbatches": 1.9})")),
      HasSubstr("microbatches = 1.9 (environment SM_HP_MP_PARAMETERS): expected an integer"));
}

TEST(Config, QuotesLongValuesInParts) {
  const std::string long_text(10'000, 'x');
  EXPECT_LT(refusal_of(with_flag("microbatches", long_text)).size(), 400);
  EXPECT_LT(refusal_of(with_flag(long_text, "1")).size(), 600);
  EXPECT_LT(refusal_of(with_launcher("[\"" + long_text + "\"]")).size(), 400);
}

TEST(Config, ShowsPathsThatAreNoUtf8) {
  const auto config = resolve_config(with_flag("plan_cache", "plans\xff"));
  EXPECT_EQ(config.values().plan_cache, "plans\xff");
  EXPECT_THAT(config.to_json(), HasSubstr("plans\xEF\xBF\xBD"));
}

TEST(Config, ChecksValuesGivenInCodeAsWell) {
  ConfigInput input;
  input.code.microbatches = -3;
  EXPECT_THAT(refusal_of(input), HasSubstr("microbatches = -3 (Config in code): expected"));
}

TEST(Config, ListsAllProblemsAtOnce) {
  ConfigInput input = with_flag("microbatches", "0");
  input.flags.emplace_back("sede", "1");
  input.environment["SMP_PIPELINE"] = "eager";
  const std::string text = refusal_of(input);
  EXPECT_THAT(text, AllOf(HasSubstr("3 problems"), HasSubstr("1. "), HasSubstr("2. "),
                          HasSubstr("3. "), HasSubstr("\"sede\""), HasSubstr("\"seed\"")));
}

TEST(Config, TreatsAnAliasAsTheSameKey) {
  EXPECT_EQ(resolve_config(with_launcher(R"({"partitions": 4})")).values().pipeline_parallel_degree,
            4);
  EXPECT_EQ(resolve_config(with_launcher(R"({"partitions": 4, "pipeline_parallel_degree": 4})"))
                .values()
                .pipeline_parallel_degree,
            4);
  EXPECT_THAT(refusal_of(with_launcher(R"({"partitions": 4, "pipeline_parallel_degree": 2})")),
              HasSubstr("contradicts"));
  ConfigInput input = with_launcher(R"({"partitions": 2})");
  input.flags = {{"pipeline_parallel_degree", "4"}};
  EXPECT_EQ(resolve_config(input).values().pipeline_parallel_degree, 4);
}

TEST(Config, AcceptsDefaultsOfLaterFeaturesAndRefusesTheRest) {
  for (const FutureKey& key : future_keys()) {
    if (!key.default_value.is_null()) {
      const Json defaults = {{key.name, key.default_value}};
      EXPECT_NO_THROW(resolve_config(with_launcher(defaults.dump()))) << key.name;
    }
    const Json other = {{key.name, "something else"}};
    EXPECT_THAT(
        refusal_of<UnsupportedError>(with_launcher(other.dump())),
        AllOf(HasSubstr(key.name), HasSubstr("known, but"), HasSubstr("not yet available")));
  }
  EXPECT_THAT(refusal_of<UnsupportedError>(with_flag("sharded_data_parallel_degree", "2")),
              HasSubstr("sharded data parallelism"));
  EXPECT_NO_THROW(resolve_config(with_flag("sharded_data_parallel_degree", "1")));
}

TEST(Config, APrecisionSaysHowOptimizersStep) {
  const auto bf16 = resolve_config(with_flag("precision", "bf16"));
  EXPECT_TRUE(bf16.values().master_weights);
  EXPECT_FALSE(bf16.values().stochastic_rounding);
  EXPECT_EQ(bf16.origin("master_weights"), "implied by precision = bf16 (flag --smp.precision)");
  EXPECT_EQ(bf16.origin("stochastic_rounding"), "default");
  EXPECT_TRUE(resolve_config(with_flag("precision", "bf16_sr")).values().stochastic_rounding);
  EXPECT_TRUE(resolve_config(with_flag("precision", "fp16")).values().master_weights);
  EXPECT_FALSE(resolve_config(with_flag("precision", "amp")).values().master_weights);
  EXPECT_THAT(refusal_of(with_launcher(R"({"precision": "bf16", "master_weights": false})")),
              AllOf(HasSubstr("master_weights = false"), HasSubstr("contradicts precision = ")));
  EXPECT_THAT(refusal_of(with_launcher(R"({"precision": "bf16_sr", "master_weights": true})")),
              HasSubstr("contradicts precision"));
  EXPECT_THAT(refusal_of(with_flag("precision", "int8")), HasSubstr("expected \"fp32\", \"amp\""));
}

TEST(Config, OlderKeysOfPrecisionsMeanTheNewOne) {
  const auto precision_of = [](const std::string& json) {
    return resolve_config(with_launcher(json)).values().precision;
  };
  EXPECT_EQ(precision_of(R"({"fp16": true})"), "fp16");
  EXPECT_EQ(precision_of(R"({"fp16_params": true})"), "fp16");
  EXPECT_EQ(precision_of(R"({"bf16": true, "fp16": false})"), "bf16");
  EXPECT_EQ(precision_of(R"({"bf16": false})"), "");
  EXPECT_EQ(precision_of(R"({"fp16": true, "fp16_params": false})"), "fp16");
  EXPECT_EQ(precision_of(R"({"fp16_params": false, "fp16": true})"), "fp16");
  EXPECT_EQ(precision_of(R"({"precision": "bf16", "bf16": false})"), "bf16");
  EXPECT_EQ(precision_of(R"({"fp16": true, "fp16_params": true})"), "fp16");
  EXPECT_THAT(refusal_of(with_launcher(R"({"fp16": true, "bf16": true})")),
              HasSubstr("contradicts"));
  EXPECT_THAT(refusal_of(with_launcher(R"({"bf16": "yes"})")), HasSubstr("expected true or false"));
  auto input = with_launcher(R"({"bf16": true})");
  input.flags.emplace_back("bf16", "false");
  EXPECT_EQ(resolve_config(input).values().precision, "");
  input.flags = {{"fp16", "1"}};
  const auto later = resolve_config(input);
  EXPECT_EQ(later.values().precision, "fp16");
  EXPECT_EQ(later.origin("precision"), "fp16 = true, flag --smp.fp16");
  ConfigInput variable;
  variable.environment["SMP_BF16"] = "true";
  EXPECT_EQ(resolve_config(variable).values().precision, "bf16");
}

/// They may ask for what they like: it is so anyway, and a line says why.
TEST(Config, TakesKeysThatNothingNeedsAndSaysWhy) {
  for (const NeedlessKey& key : needless_keys()) {
    const Json given = key.type == KeyType::kInteger  ? Json(12345)
                       : key.type == KeyType::kString ? Json("nccl")
                                                      : Json(!key.default_value.get<bool>());
    const auto config = resolve_config(with_launcher(Json{{key.name, given}}.dump()));
    EXPECT_THAT(config.warnings(), ElementsAre(AllOf(HasSubstr(key.name), HasSubstr(key.reason),
                                                     HasSubstr("changes nothing"))));
    EXPECT_EQ(config.to_json(), resolve_config(with_world(4)).to_json()) << key.name;
    if (!key.default_value.is_null()) {
      const Json defaults = {{key.name, key.default_value}};
      EXPECT_THAT(resolve_config(with_launcher(defaults.dump())).warnings(), IsEmpty());
    }
    EXPECT_THAT(refusal_of(with_launcher(Json{{key.name, 0.5}}.dump())),
                AllOf(HasSubstr(key.name), HasSubstr(key.expected)));
  }
  EXPECT_THAT(resolve_config(with_flag("deterministic_server", "true")).warnings(),
              ElementsAre(HasSubstr("docs/design.md, Order")));
  ConfigInput input;
  input.environment["SMP_DETERMINISTIC_SERVER"] = "1";
  EXPECT_THAT(resolve_config(input).warnings(),
              ElementsAre(HasSubstr("environment SMP_DETERMINISTIC_SERVER")));
}

TEST(Config, RefusesNeedlessKeysThatContradictOthers) {
  auto input = with_flag("load_partition", "false");
  input.flags.emplace_back("partition_file", "plan.json");
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("load_partition = false"),
                                       HasSubstr("contradicts partition_file = plan.json")));
  input = with_flag("horovod", "true");
  input.flags.emplace_back("ddp", "false");
  EXPECT_THAT(refusal_of(input), AllOf(HasSubstr("horovod = true"), HasSubstr("ddp = false")));
}

TEST(Config, RecognisesMisspeltVariablesAndLeavesForeignOnesAlone) {
  ConfigInput input;
  input.environment["SMP_MICROBATCHS"] = "8";
  EXPECT_THAT(refusal_of(input), HasSubstr("did you mean SMP_MICROBATCHES?"));
  ConfigInput foreign;
  foreign.environment = {{"SMP_LOG", "debug"}, {"SMP_TORCH_DIR", "x"}, {"SMP_COLOR", "1"}};
  EXPECT_NO_THROW(resolve_config(foreign));
}

TEST(Config, TellsRanksApartByWhatMustBeEqual) {
  const auto values = [](const ResolvedConfig& config) {
    std::string all;
    for (const auto& row : config.shared_rows()) all += row.key + " = " + row.value + "\n";
    return all;
  };
  const auto with = [&](const std::string& key, const std::string& value) {
    return values(resolve_config(with_flag(key, value)));
  };
  EXPECT_EQ(with("microbatches", "4"), with("microbatches", "4"));
  EXPECT_NE(with("microbatches", "4"), with("microbatches", "8"));
  EXPECT_EQ(with("intra_op_threads", "4"), with("intra_op_threads", "8"));
  EXPECT_EQ(values(resolve_config(with_launcher(R"({"seed": 3})"))), with("seed", "3"));
}

TEST(Config, PrintsEveryKeyWithItsOrigin) {
  const ResolvedConfig config = resolve_config(with_flag("microbatches", "4"));
  for (const ConfigKey& key : config_keys()) EXPECT_THAT(config.table(), HasSubstr(key.name));
  EXPECT_THAT(config.table(), Not(HasSubstr("null")));
  EXPECT_EQ(Json::parse(config.to_json())["microbatches"],
            (Json{{"value", 4}, {"origin", "flag --smp.microbatches"}}));
}

TEST(Config, ExplainsEveryKeyInLinesThatFit) {
  const std::string text = resolve_config(with_flag("microbatches", "4")).explained(80);
  EXPECT_THAT(text,
              HasSubstr("\n    slices of each batch that travel through the stages independently; "
                        "takes an\n    integer from 1 to 1048576; without it: 1\n"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("    ")) continue;  // a row of the table
    EXPECT_LE(line.size(), 80u) << line;
  }
}

TEST(Config, ShowsUnitsAndDefaultsOfTheStruct) {
  const ResolvedConfig config = resolve_config(with_flag("stall_seconds", "7"));
  EXPECT_THAT(config.table(), AllOf(ContainsRegex("stall_seconds +7.0 seconds +flag"),
                                    ContainsRegex("fiber_stack_bytes +1048576 bytes +default"),
                                    ContainsRegex("stage_memory +.what the machine has")));
  EXPECT_EQ(find_config_key("abort_seconds")->default_text,
            concat(Config().abort_seconds, " seconds"));
  EXPECT_EQ(find_config_key("loss")->default_text, Config().loss);
  EXPECT_EQ(find_config_key("plan_file")->default_text, "not set");
  EXPECT_THAT(refusal_of(with_flag("keep_alive_seconds", "1")),
              HasSubstr("expected 0, or a number from 5 to 3600, in seconds"));
}

TEST(Flags, AreTakenOutOfTheArguments) {
  std::vector<std::string> words = {
      "prog", "--smp.microbatches", "8", "--epochs", "3", "--smp.seed=-1", "data", "--", "--smp.x"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  EXPECT_THAT(take_flags(argc, argv.data()),
              ElementsAre(Pair("microbatches", "8"), Pair("seed", "-1")));
  EXPECT_THAT(std::vector<std::string>(argv.begin(), argv.begin() + argc),
              ElementsAre("prog", "--epochs", "3", "data", "--", "--smp.x"));
  EXPECT_EQ(argv[argc], nullptr);
}

TEST(Flags, MayBeSpeltWithDashesAndMayLackAValue) {
  std::vector<std::string> words = {"prog", "--smp.active-microbatches=3", "--smp.loss",
                                    "--verbose"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  EXPECT_THAT(take_flags(argc, argv.data()),
              ElementsAre(Pair("active_microbatches", "3"), Pair("loss", "")));
  EXPECT_EQ(argc, 2);
}

}  // namespace
}  // namespace smp::base
