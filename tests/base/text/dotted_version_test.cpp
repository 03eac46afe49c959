// Versions as numbers.
#include "base/text/dotted_version.h"

#include <gmock/gmock.h>

namespace smp::base {
namespace dotted_version_test {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(DottedVersion, IsReadAsFarAsThereAreNumbers) {
  EXPECT_THAT(parsed_version("2.31.24.0"), ElementsAre(2, 31, 24, 0));
  EXPECT_THAT(parsed_version("5.15.0-1053-aws"), ElementsAre(5, 15, 0));
  EXPECT_THAT(parsed_version("1"), ElementsAre(1));
  EXPECT_THAT(parsed_version("2."), ElementsAre(2));
  EXPECT_THAT(parsed_version("2.x"), ElementsAre(2));
  EXPECT_THAT(parsed_version("2.-3"), ElementsAre(2));
  EXPECT_THAT(parsed_version("99999999999999999999"), IsEmpty());
  EXPECT_THAT(parsed_version(""), IsEmpty());
  EXPECT_THAT(parsed_version("unknown"), IsEmpty());
}

TEST(DottedVersion, ComparesByNumber) {
  EXPECT_LT(parsed_version("2.9"), parsed_version("2.10"));
  EXPECT_LT(parsed_version("2.10"), parsed_version("2.10.1"));
  EXPECT_EQ(parsed_version("2.10-a"), parsed_version("2.10"));
}

}  // namespace dotted_version_test
}  // namespace smp::base
