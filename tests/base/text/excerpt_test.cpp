// What messages quote of foreign text.
#include "base/text/excerpt.h"

#include <gmock/gmock.h>

namespace smp::base {
namespace {

using testing::HasSubstr;

TEST(Excerpt, OfShortTextIsTheText) {
  EXPECT_EQ(excerpt("encoder.block.3"), "encoder.block.3");
  EXPECT_EQ(excerpt("größer, 层"), "größer, 层");
  EXPECT_EQ(excerpt(std::string(kExcerptBytes, 'x')), std::string(kExcerptBytes, 'x'));
}

TEST(Excerpt, OfLongTextIsItsTwoEnds) {
  EXPECT_EQ(excerpt("abcdefghij" + std::string(100, '-') + "xyz", 9),
            "abcdef… (104 more bytes) …xyz");
  EXPECT_LT(excerpt(std::string(1 << 20, 'x')).size(), kExcerptBytes + 40);
}

TEST(Excerpt, CutsNoCharacter) {
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ä";
  for (std::size_t most = 20; most < 30; ++most) {
    EXPECT_THAT(excerpt(umlauts, most), testing::Not(HasSubstr("\\x"))) << most;
  }
}

TEST(Excerpt, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(excerpt("a\x1b[2J\n\x7f"), "a\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(excerpt("\xff\xc3"), "\\xff\\xc3");
}

}  // namespace
}  // namespace smp::base
