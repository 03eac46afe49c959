// Bytes as tokens.
#include "smp/data/tokenizer.h"

#include <gmock/gmock.h>

#include "support/refusal.h"

namespace smp::data {
namespace {

TEST(BytesTokenizer, ComesBackToTheText) {
  const auto tokenizer = bytes_tokenizer();
  std::vector<std::int32_t> tokens = {7};
  std::string text("h\xc3\xa4\0\n", 5);
  tokenizer->encode(text, tokens);
  EXPECT_THAT(tokens, testing::ElementsAre(7, 'h', 0xc3, 0xa4, 0, '\n'));
  tokens.push_back(tokenizer->end_of_document());
  EXPECT_EQ(tokenizer->decode(tokens), "\a" + text);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
}

TEST(BytesTokenizer, RefusesTokensThatAreNone) {
  for (const std::int32_t token : {-1, 257}) {
    EXPECT_THAT(refusal([&] {
                  (void)bytes_tokenizer()->decode({&token, 1});
                }),
                testing::HasSubstr("there is no token " + std::to_string(token)));
  }
}

}  // namespace
}  // namespace smp::data
