// The width of tables.
#include "base/text/terminal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace smp::base {
namespace {

int width_with(const char* columns) {
  ::setenv("COLUMNS", columns, 1);
  const int width = terminal_width();
  ::unsetenv("COLUMNS");
  return width;
}

TEST(Terminal, IsAsWideAsTheUserSaysWithinReason) {
  EXPECT_EQ(width_with("80"), 80);
  EXPECT_EQ(width_with("132"), 132);
  EXPECT_EQ(width_with("10"), 60);
  EXPECT_EQ(width_with("100000"), 200);
}

TEST(Terminal, IsOfUsualWidthWhereNobodyKnows) {
  EXPECT_EQ(width_with("wide"), width_with(""));
  if (::isatty(STDOUT_FILENO) == 1) GTEST_SKIP() << "the terminal says its own";
  EXPECT_EQ(width_with(""), 100);
}

}  // namespace
}  // namespace smp::base
