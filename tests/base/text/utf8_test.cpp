// Which bytes are a character.
#include "base/text/utf8.h"

#include <gtest/gtest.h>

namespace smp::base {
namespace {

TEST(Utf8, CharactersHaveOneToFourBytes) {
  EXPECT_EQ(character_length("ab"), 1);
  EXPECT_EQ(character_length("äb"), 2);
  EXPECT_EQ(character_length("层b"), 3);
  EXPECT_EQ(character_length("\U0001F600b"), 4);
  EXPECT_EQ(character_length("\xf4\x8f\xbf\xbf"), 4);
}

TEST(Utf8, NoCharacterIsStrayCutLongOrHalf) {
  for (const char* broken :
       {"\x80", "\xc3", "\xc3(", "\xe5\xb1", "\xff", "\xf5\x80\x80\x80", "\xc0\x80", "\xe0\x80\x80",
        "\xf0\x80\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(character_length(broken), 0) << broken;
  }
}

}  // namespace
}  // namespace smp::base
