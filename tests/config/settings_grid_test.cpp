// Combinations of settings.
#include "config/settings_grid.h"

#include <gmock/gmock.h>

#include "base/check.h"
#include "support/refusal.h"

namespace smp::base {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SettingsGrid, CountsTheLastSettingFastest) {
  const auto axes = settings_axes({{"microbatches", "8,2"}, {"pipeline", "1f1b,simple,1f1b+2"}});
  ASSERT_EQ(axes.size(), 2u);
  EXPECT_EQ(axes[0].key, "microbatches");
  EXPECT_THAT(axes[1].values, ElementsAre("1f1b", "simple", "1f1b+2"));
  EXPECT_THAT(combinations(axes),
              ElementsAre(ElementsAre("8", "1f1b"), ElementsAre("8", "simple"),
                          ElementsAre("8", "1f1b+2"), ElementsAre("2", "1f1b"),
                          ElementsAre("2", "simple"), ElementsAre("2", "1f1b+2")));
}

TEST(SettingsGrid, OfNothingIsOneCombination) {
  EXPECT_THAT(combinations(settings_axes({})), ElementsAre(ElementsAre()));
}

/// A list of numbers is one value, unless semicolons separate several.
TEST(SettingsGrid, TakesValuesWithCommas) {
  const auto values = [](const char* key, const char* text) {
    return settings_axes({{key, text}}).front().values;
  };
  EXPECT_THAT(values("stage_speeds", "1,2"), ElementsAre("1,2"));
  EXPECT_THAT(values("stage_speeds", "1,2;2,1"), ElementsAre("1,2", "2,1"));
  EXPECT_THAT(values("devices", "h100, cpu;cpu"), ElementsAre("h100, cpu", "cpu"));
  EXPECT_THAT(values("keep_whole", "Attention,Block"), ElementsAre("Attention,Block"));
  EXPECT_THAT(values("plan_file", "a,b.json;c.json"), ElementsAre("a,b.json", "c.json"));
  EXPECT_THAT(values("config", "a.json,b.json"), ElementsAre("a.json", "b.json"));
}

TEST(SettingsGrid, NamesASettingByItsOwnName) {
  EXPECT_EQ(settings_axes({{"partitions", "1,2"}}).front().key, "pipeline_parallel_degree");
  EXPECT_EQ(variable_of("pipeline_parallel_degree"), "SMP_PIPELINE_PARALLEL_DEGREE");
}

TEST(SettingsGrid, RefusesWhatCannotBeMeant) {
  const auto said = [](std::vector<std::pair<std::string, std::string>> flags) {
    return refusal<UsageError>([&] { (void)settings_axes(flags); });
  };
  EXPECT_THAT(said({{"microbatch", "2,4"}}), HasSubstr("did you mean \"microbatches\""));
  EXPECT_THAT(said({{"fp16", "true,false"}}), HasSubstr("older key for --smp.precision = fp16"));
  EXPECT_THAT(said({{"sdp_reduce_bucket_size", "1,2"}}), HasSubstr("is not available yet"));
  EXPECT_THAT(said({{"deterministic_server", "true,false"}}), HasSubstr("changes nothing: "));
  EXPECT_THAT(said({{"microbatches", ""}}), HasSubstr("--smp.microbatches needs values"));
  EXPECT_THAT(said({{"microbatches", "2,"}}), HasSubstr("--smp.microbatches needs values"));
  EXPECT_THAT(said({{"microbatches", ",2"}}), HasSubstr("--smp.microbatches needs values"));
  EXPECT_THAT(said({{"microbatches", "2,4,2"}}), HasSubstr("has the value 2 twice"));
  EXPECT_THAT(said({{"partitions", "2"}, {"pipeline_parallel_degree", "1"}}),
              HasSubstr("--smp.pipeline_parallel_degree is given twice"));
  std::string many = "1";
  for (int i = 2; i <= 101; ++i) many += concat(",", i);
  EXPECT_THAT(said({{"microbatches", many}, {"active_microbatches", many}}),
              HasSubstr("more than 10000 combinations"));
}

}  // namespace
}  // namespace smp::base
