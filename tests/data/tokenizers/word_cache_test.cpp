// Words that are remembered.
#include "data/tokenizers/word_cache.h"

#include <gmock/gmock.h>

namespace smp::data {
namespace {

TEST(WordCache, KnowsWhatItWasTold) {
  WordCache cache;
  std::vector<std::int32_t> tokens = {9};
  EXPECT_FALSE(cache.append("word", tokens));
  cache.remember("word", std::vector<std::int32_t>{1, 2});
  cache.remember("", {});
  cache.remember("other", std::vector<std::int32_t>{3});
  cache.remember("word", std::vector<std::int32_t>{1, 2});
  EXPECT_TRUE(cache.append("word", tokens));
  EXPECT_TRUE(cache.append("", tokens));
  EXPECT_TRUE(cache.append("other", tokens));
  EXPECT_THAT(tokens, testing::ElementsAre(9, 1, 2, 3));
  cache.forget_all();
  EXPECT_FALSE(cache.append("word", tokens));
}

TEST(WordCache, StaysSmall) {
  WordCache cache;
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 200'000; ++i) {
    const auto word = std::to_string(i);
    cache.remember(word, {&i, 1});
    ASSERT_TRUE(cache.append(word, tokens));
    ASSERT_EQ(tokens.back(), i);
  }
  EXPECT_FALSE(cache.append("1", tokens));  // forgotten since
  const std::string long_word(1000, 'a');
  cache.remember(long_word, tokens);
  EXPECT_FALSE(cache.append(long_word, tokens));
}

TEST(TakeWord, CutsBeforeSpacesThatFollowAWord) {
  std::string_view text = "  one two  three  ";
  std::vector<std::string> words;
  while (!text.empty()) words.emplace_back(take_word(text));
  EXPECT_THAT(words, testing::ElementsAre("  one", " two", "  three", "  "));
}

}  // namespace
}  // namespace smp::data
