// What the ranks of a run took, written and read again.
#include "report/pictures/memory_use.h"

#include <gmock/gmock.h>

#include <tuple>

#include "support/refusal.h"

namespace smp::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(MemoryUse, IsReadAsItWasWritten) {
  const MemoryUse stages = {0, 5'000'000'000, 7};
  EXPECT_EQ(memory_use_from_json(memory_use_to_json(stages), "m.json"), stages);
}

TEST(MemoryUse, MayBeKnownOfSomeStage) {
  EXPECT_TRUE(any_measured({0, 7}));
  EXPECT_FALSE(any_measured({0, 0}));
  EXPECT_FALSE(any_measured({}));
}

TEST(MemoryUse, RefusesOtherFilesAndNumbersByName) {
  const auto refused = [](const std::string& text) {
    return refusal([&] { std::ignore = memory_use_from_json(text, "m.json"); });
  };
  EXPECT_THAT(refused("{}"), AllOf(HasSubstr("m.json"), HasSubstr("format")));
  EXPECT_THAT(refused(R"({"format":"smp-plan"})"), HasSubstr("expected smp-memory"));
  EXPECT_THAT(refused(R"({"format":"smp-memory","peak_bytes":[-1]})"), HasSubstr("holds -1"));
  EXPECT_THAT(refused(R"({"format":"smp-memory","peak_bytes":[1.5]})"), HasSubstr("m.json"));
}

}  // namespace
}  // namespace smp::report
