// Lines by number.
#include "data/files/line_index.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/dice.h"

namespace smp::data {
namespace {

TEST(LineIndex, LeavesBlankLinesAndEndsOut) {
  const LineIndex lines("one\n\n  \t\r\ntwo\r\n three \nfour");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines.line(0), "one");
  EXPECT_EQ(lines.line(1), "two");
  EXPECT_EQ(lines.line(2), " three ");
  EXPECT_EQ(lines.line(3), "four");
  EXPECT_EQ(lines.line_of_file(0), 1);
  EXPECT_EQ(lines.line_of_file(1), 4);
  EXPECT_EQ(lines.line_of_file(3), 6);
}

TEST(LineIndex, OfNothingIsEmpty) {
  EXPECT_EQ(LineIndex("").size(), 0);
  EXPECT_EQ(LineIndex("\n \n\r\n").size(), 0);
}

TEST(LineIndex, FindsEveryLineOfRandomTexts) {
  Dice dice(1);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    std::vector<std::pair<std::string, int>> expected;  // and its number in the file
    const int count = dice.below(80);
    for (int i = 0; i < count; ++i) {
      std::string line = dice.chance(0.3) ? "" : std::string(dice.between(1, 9), 'a' + i % 26);
      if (!line.empty()) expected.emplace_back(line, i + 1);
      text += line + (dice.chance(0.2) ? "\r\n" : "\n");
    }
    if (!text.empty() && dice.chance(0.5)) text.pop_back();
    const LineIndex lines(text);
    ASSERT_EQ(lines.size(), static_cast<std::int64_t>(expected.size()));
    for (std::int64_t i = 0; i < lines.size(); ++i) {
      auto line = std::string(lines.line(i));
      if (line.ends_with('\r')) line.pop_back();  // of a file cut between "\r" and "\n"
      EXPECT_EQ(line, expected[static_cast<std::size_t>(i)].first);
      EXPECT_EQ(lines.line_of_file(i), expected[static_cast<std::size_t>(i)].second);
    }
  }
}

}  // namespace
}  // namespace smp::data
