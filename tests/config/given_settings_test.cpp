// Which setting of a key counts, and how messages name it.
#include "config/given_settings.h"

#include <gmock/gmock.h>

#include <utility>

namespace smp::base {
namespace {

using testing::IsNull;
using testing::NotNull;

Setting setting_of(const char* key, Json value, const char* origin) {
  Setting setting;
  setting.key = key;
  setting.value = std::move(value);
  setting.origin = origin;
  return setting;
}

TEST(GivenSettings, NameTheKeyAsItWasWritten) {
  const Config values;
  GivenSettings given(values);
  given.set("pipeline_parallel_degree", setting_of("partitions", 4, "smp.json:2:3"));
  EXPECT_EQ(given.named("pipeline_parallel_degree"), "partitions = 4 (smp.json:2:3)");
}

TEST(GivenSettings, NameWhatNobodyGivesByItsValueInForce) {
  Config values;
  const GivenSettings given(values);
  values.microbatches = 7;
  EXPECT_EQ(given.named("microbatches"), "microbatches = 7 (default)");
}

TEST(GivenSettings, NameATextThatIsEmpty) {
  auto empty = setting_of("plan_file", "", "flag --smp.plan_file");
  empty.is_text = true;
  EXPECT_EQ(GivenSettings::named(empty), "plan_file = nothing (flag --smp.plan_file)");
}

TEST(GivenSettings, TheLastOneOfAKeyCountsUntilItIsRemoved) {
  const Config values;
  GivenSettings given(values);
  EXPECT_FALSE(given.given("microbatches"));
  EXPECT_THAT(given.find("microbatches"), IsNull());
  given.set("microbatches", setting_of("microbatches", 2, "a file"));
  given.set("microbatches", setting_of("microbatches", 3, "a flag"));
  ASSERT_THAT(given.find("microbatches"), NotNull());
  EXPECT_EQ(given.find("microbatches")->origin, "a flag");
  given.remove("microbatches");
  EXPECT_FALSE(given.given("microbatches"));
}

}  // namespace
}  // namespace smp::base
