// Paths of modules, as people read several of them.
#include "partition/text/module_names.h"

#include <gmock/gmock.h>

namespace smp::partitioning {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ModuleNames, ParentOfAPathIsWhatStandsBeforeItsLastDot) {
  EXPECT_EQ(parent_path("encoder.block.3"), "encoder.block");
  EXPECT_EQ(parent_path("encoder"), "");
  EXPECT_EQ(parent_path(""), "");
}

TEST(ModuleNames, NumberedSiblingsBecomeARange) {
  EXPECT_THAT(short_names({"a.0", "a.1", "a.2", "b.3", "b.5"}),
              ElementsAre("a[0:3]", "b.3", "b.5"));
  EXPECT_THAT(short_names({"0", "1"}), ElementsAre("[0:2]"));
}

TEST(ModuleNames, ThreeSiblingsShareBraces) {
  EXPECT_THAT(short_names({"a.x", "a.y", "a.z"}), ElementsAre("a.{x, y, z}"));
  EXPECT_THAT(short_names({"a.x", "a.y"}), ElementsAre("a.x", "a.y"));
  EXPECT_THAT(short_names({"x", "y", "z"}), ElementsAre("x", "y", "z"));
  EXPECT_THAT(short_names({}), IsEmpty());
}

TEST(ModuleNames, AreJoinedByCommas) {
  EXPECT_EQ(joined({"a", "b[0:2]"}), "a, b[0:2]");
  EXPECT_EQ(joined({}), "");
}

}  // namespace
}  // namespace smp::partitioning
