// Columns that line up, whatever is in them.
#include "partition/text/text_table.h"

#include <gmock/gmock.h>

#include "partition/text/short_text.h"

namespace smp::partitioning {
namespace {

using testing::ElementsAre;

TEST(TextTable, AlignsNumbersRightAndTextLeft) {
  TextTable table({{"name"}, {"bytes", true}});
  table.add_row({"a", "1"});
  table.add_row({"longer", "1234567"});
  EXPECT_EQ(table.finish(80),
            "name      bytes\n"
            "a             1\n"
            "longer  1234567\n");
}

TEST(TextTable, CountsCharactersAndNotBytes) {
  TextTable table({{"bar"}, {"x"}});
  table.add_row({"▇▇░░", "1"});
  table.add_row({"four", "2"});
  EXPECT_EQ(table.finish(80),
            "bar   x\n"
            "▇▇░░  1\n"
            "four  2\n");
}

TEST(TextTable, GoesOnInTheNextLine) {
  TextTable table({{"n", true}, {"modules", false, 10}, {"x"}});
  table.add_row({"1", "one, two, three, four", "a"});
  table.add_note("a note that is longer than this table may be", 1);
  EXPECT_EQ(table.finish(24),
            "n  modules     x\n"
            "1  one, two,   a\n"
            "   three,\n"
            "   four\n"
            "   a note that is longer\n"
            "   than this table may\n"
            "   be\n");
}

TEST(TextTable, BreaksBehindBlanksOrWhereItMust) {
  EXPECT_THAT(wrapped("", 5), ElementsAre(""));
  EXPECT_THAT(wrapped("12345", 5), ElementsAre("12345"));
  EXPECT_THAT(wrapped("12", 0), ElementsAre("1", "2")) << "where nobody knows a width";
  EXPECT_THAT(wrapped("12", -3), ElementsAre("1", "2"));
  EXPECT_THAT(wrapped("12345 78", 5), ElementsAre("12345", "78"));
  EXPECT_THAT(wrapped("1234567890", 4), ElementsAre("1234", "5678", "90"));
  EXPECT_THAT(wrapped("a.bc.def", 6), ElementsAre("a.bc.", "def")) << "of paths, whole names";
  EXPECT_THAT(wrapped("x, a.bc.def", 6), ElementsAre("x,", "a.bc.", "def"));
  EXPECT_THAT(wrapped("ääää öö", 5), ElementsAre("ääää", "öö"));
}

TEST(ShortText, ShortensCounts) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(4100), "4.1 K");
  EXPECT_EQ(short_count(999'999), "1.0 M");
  EXPECT_EQ(short_count(14'200'000), "14.2 M");
  EXPECT_EQ(short_count(2'000'000'000), "2.0 G");
}

TEST(ShortText, ShortensBytesAndSeconds) {
  EXPECT_EQ(short_bytes(0), "0");
  EXPECT_EQ(short_bytes(950), "950 B");
  EXPECT_EQ(short_bytes(1000), "1.0 KiB");
  EXPECT_EQ(short_bytes(999LL << 10), "999.0 KiB");
  EXPECT_EQ(short_bytes(1500LL << 20), "1.5 GiB");
  EXPECT_EQ(short_seconds(0.00095), "950 us");
  EXPECT_EQ(short_seconds(0.0131), "13.1 ms");
  EXPECT_EQ(short_seconds(0.5), "500 ms");
  EXPECT_EQ(short_seconds(2.5), "2.50 s");
}

}  // namespace
}  // namespace smp::partitioning
