// What is said where a shared object is missing, or is not what it should be.
#include "data/plugins/own_library.h"

#include <gmock/gmock.h>

namespace smp::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(OwnLibrary, SaysWhyThereIsNone) {
  const auto missing = open_own_library("libsmp_nothing.so", "smp_nothing", "do this");
  EXPECT_EQ(missing.function, nullptr);
  EXPECT_EQ(missing.reason, "this build has no libsmp_nothing.so: do this");
  // A file beside the program that is no library: the program's own folder has CMake's.
  const auto other = open_own_library("CTestTestfile.cmake", "smp_nothing", "do this");
  EXPECT_EQ(other.function, nullptr);
  EXPECT_THAT(other.reason,
              AllOf(HasSubstr("CTestTestfile.cmake cannot be loaded"), HasSubstr("invalid ELF")));
}

}  // namespace
}  // namespace smp::data
